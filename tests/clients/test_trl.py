"""Exported judgements are read by TRL as they are: loaded by `datasets`, seen as conversations, put into a template."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.feedback.exports import JUDGED_SHAPES, SHAPES
from apps.feedback.preferences.services import add_comparison, add_correction
from apps.feedback.preferences.sides import Side
from apps.feedback.services import Answer, add_labels
from apps.trajectories.datasets.export_job import run_export
from apps.trajectories.datasets.exporting import file_path, start_export
from apps.trajectories.models import Step
from tests.factories.trajectories import StepFactory, TrajectoryFactory
from tests.worker.conftest import ml_python, model_dir

__all__ = ["ml_python", "model_dir"]  # fixtures
pytestmark = [pytest.mark.real, pytest.mark.clients, pytest.mark.django_db, pytest.mark.timeout(240)]

READ = """
import json, sys
from datasets import load_dataset
from transformers import AutoTokenizer
from trl.data_utils import apply_chat_template, is_conversational

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
rows = load_dataset("json", data_files=sys.argv[2], split="train", cache_dir=sys.argv[3])
parts = [name for name in ("prompt", "chosen", "rejected", "completion", "tools") if name in rows.column_names]
told = [apply_chat_template(dict(row), tokenizer) for row in rows.select_columns(parts)]
print(json.dumps([all(map(is_conversational, rows)), told]))
"""
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.fixture
def caller(owner: User, settings: Settings, tmp_path: Path) -> Caller:
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    return Caller(user=owner)


@pytest.fixture
def judged(agent: Agent, caller: Caller) -> list[Step]:
    """Two steps of two trajectories, corrected, compared and hinted at."""
    steps = [
        StepFactory.create(trajectory=TrajectoryFactory.create(agent=agent), index=0, text=text)
        for text in ("hi", "good day")
    ]
    for step, message in zip(steps, ({"content": None, "tool_calls": [CALL]}, "dear all"), strict=True):
        add_correction(caller=caller, step=step, message=message)
        add_labels(caller=caller, trajectory=step.trajectory, answers=[Answer(field="hint", text="greet", step=step)])
    good, bad = (Side(trajectory=step.trajectory) for step in steps)
    add_comparison(caller=caller, chosen=good, rejected=bad)
    return steps


def read_in_trl(path: Path, *, ml_python: str, model_dir: Path) -> tuple[bool, list[dict[str, Any]]]:
    command = [ml_python, "-c", READ, str(model_dir), str(path), str(path.parent / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    is_conversational, told = json.loads(done.stdout.splitlines()[-1])
    return is_conversational, told


@pytest.mark.parametrize("shape", JUDGED_SHAPES, ids=[shape.name for shape in JUDGED_SHAPES])
def test_trl_takes_them_as_they_are(
    project: Project, caller: Caller, judged: list[Step], ml_python: str, model_dir: Path, shape: Any
) -> None:
    export = start_export(project=project, caller=caller, shape=shape, file_format="jsonl", query="")
    run_export(export.pk, shapes=SHAPES)
    is_conversational, told = read_in_trl(file_path(export), ml_python=ml_python, model_dir=model_dir)
    sides = {"preference": ("chosen", "rejected")}.get(shape.name, ("completion",))
    assert (is_conversational, len(told)) == (True, 3 if shape.name == "preference" else 2)
    assert all("hello" in row["prompt"] and set(row) == {"prompt", *sides} for row in told)
    assert all(row[side] for row in told for side in sides)
