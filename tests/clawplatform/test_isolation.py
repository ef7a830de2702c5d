"""The web side never needs the ML libraries, whatever else is installed beside it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clawplatform.env import ROOT

ML_LIBRARIES = ("torch", "deepspeed", "transformers", "peft", "vllm")


@pytest.mark.parametrize("module", ["clawplatform.asgi", "worker.tasks", "worker.host.startup"])
def test_it_loads_without_the_ml_libraries(module: str, tmp_path: Path) -> None:
    for library in ML_LIBRARIES:
        (tmp_path / f"{library}.py").write_text("raise AssertionError(f'{__name__} was imported')")
    code = f"import django, importlib; django.setup(); importlib.import_module({module!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "clawplatform.settings",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
