"""The ML environment for the tests that start its programs. Those under ml/ run inside it: see
`test_in_ml_environment.py`."""

from pathlib import Path

import pytest
from django.conf import settings

collect_ignore = ["engine/ml", "reward_model/ml", "trainer/ml"]


@pytest.fixture(scope="session")
def ml_python() -> str:
    """The interpreter that has torch and vLLM."""
    python = Path(settings.CLAW.ml_python)
    if not python.exists():
        pytest.fail(f"there is no ML environment at {python}: run `make setup`")
    return str(python)
