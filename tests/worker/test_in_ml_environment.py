"""Runs the tests under ml/ in the environment that has torch and transformers, by that environment's own pytest."""

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("folder", "n_least"),
    [("tests/worker/engine/ml", 20), ("tests/worker/trainer/ml", 200), ("tests/worker/reward_model/ml", 6)],
)
def test_the_tests_that_need_its_packages_pass(ml_python: str, folder: str, n_least: int) -> None:
    command = [ml_python, "-m", "pytest", folder, "-c", "tests/worker/ml.ini", "--rootdir", ".", "--confcutdir", folder]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-5000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None
    assert int(passed[1]) >= n_least
