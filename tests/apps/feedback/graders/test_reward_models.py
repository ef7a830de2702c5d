"""A reward model from the web side: found by its folder's name, asked in a child process, its faults told in words.

`tests/worker/reward_model/ml` scores with a real model.
"""

import sys
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from apps.feedback.graders.grades import Failure, Grade, NoGrade
from apps.feedback.graders.reward_models import RewardModelSettings, grade_by_model
from apps.feedback.graders.subjects import Subject
from apps.trajectories.models import Trajectory

SUBJECTS = [
    Subject(trajectory=Trajectory(), step_id=None, answer={"role": "assistant", "content": text}) for text in "ab"
]


@pytest.fixture
def python(settings: Settings, tmp_path: Path) -> Path:
    """A program in the place of the ML environment's Python; the test writes what it says."""
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    program = tmp_path / "python"
    settings.CLAW = settings.CLAW.model_copy(update={"cache_dir": tmp_path, "ml_python": program})
    return program


def write(program: Path, body: str) -> None:
    program.write_text(f"#!{sys.executable}\nimport sys, json\nlines = sys.stdin.read().splitlines()\n{body}\n")
    program.chmod(0o755)


def grade(model: str = "mine", **given: float) -> list[object]:
    return list(grade_by_model(RewardModelSettings(model=model, **given), SUBJECTS, low=-1, high=1))  # type: ignore[arg-type]


def test_a_score_is_put_on_the_scale(python: Path) -> None:
    write(python, "for line in lines: print(json.dumps({'score': 2.0 if '\"a\"' in line else -50}))")
    first, second = grade(centre=2.0)
    assert isinstance(first, Grade)
    assert isinstance(second, Grade)
    assert first.value == 0
    assert second.value == pytest.approx(-1)
    assert first.text == "mine scores 2"


def test_what_it_cannot_score_says_so(python: Path) -> None:
    write(python, "for line in lines: print(json.dumps({'error': 'no words'}))")
    assert grade() == [NoGrade(why="no words")] * 2


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("sys.exit('out of memory')", "out of memory"),
        ("print('{}')", "2 scores were asked for and 1 came"),
        ("print('x\\ny')", "Expecting value"),
        ("sys.exit(3)", "ended with 3"),
        (
            "raise ValueError('no tokenizer among ' + 'x' * 400)",
            "the reward model failed: ValueError: no tokenizer among x",
        ),
        ("raise ValueError('none:\\n(1) a file\\n(2) a class')", "ValueError: none: (1) a file (2) a class"),
    ],
)
def test_a_fault_is_told(python: Path, body: str, reason: str) -> None:
    write(python, body)
    for outcome in grade():
        assert isinstance(outcome, Failure)
        assert reason in outcome.why


def test_a_model_that_is_not_there(python: Path) -> None:
    [outcome, _] = grade("other")
    assert isinstance(outcome, Failure)
    assert "no reward model 'other'" in outcome.why
