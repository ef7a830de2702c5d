"""The settings' readers and the file that shows them."""

from pathlib import Path
from typing import Any

from clawplatform.env import ROOT, Env


def read(**values: Any) -> Env:
    return Env(**values)


def test_the_example_file_names_every_setting_and_no_other() -> None:
    lines = (ROOT / ".env.example").read_text().splitlines()
    shown = {line.partition("=")[0] for line in lines if line and not line.startswith("#")}
    assert shown == {field.alias for field in Env.model_fields.values()}


def test_the_example_file_shows_the_defaults() -> None:
    from_file = read(_env_file=ROOT / ".env.example")
    defaults = read(_env_file=None)
    for name in Env.model_fields.keys() - {"data_dir", "ml_python", "database_url", "redis_url"}:  # set by the test run
        assert getattr(from_file, name) == getattr(defaults, name), name


def test_folders_are_absolute_wherever_a_process_starts(tmp_path: Path) -> None:
    assert read(CLAW_DATA_DIR="var", CLAW_CACHE_DIR="~/cache").data_dir.is_absolute()
