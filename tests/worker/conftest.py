"""The ML environment for the tests that start its programs. Those under ml/ run inside it: see
`test_in_ml_environment.py`."""

import subprocess
from pathlib import Path

import pytest
from django.conf import settings

from worker.trainer.command import REPOSITORY

collect_ignore = ["engine/ml", "reward_model/ml", "trainer/ml"]


@pytest.fixture(scope="session")
def ml_python() -> str:
    """The interpreter that has torch and vLLM."""
    python = Path(settings.CLAW.ml_python)
    if not python.exists():
        pytest.fail(f"there is no ML environment at {python}: run `make setup`")
    return str(python)


@pytest.fixture(scope="session")
def model_dir(ml_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model that is really there."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run(
        [ml_python, "-m", "worker.engine.models.tiny", str(folder)], cwd=REPOSITORY, check=True, capture_output=True
    )
    return folder
