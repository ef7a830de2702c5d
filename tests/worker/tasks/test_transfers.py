"""The entry point of exports knows every shape that one can be started in."""

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.feedback.exports import SHAPES
from apps.feedback.preferences.services import add_correction
from apps.feedback.services import Answer, add_labels
from apps.trajectories.datasets.exporting import start_export
from apps.trajectories.datasets.models import Shape
from tests.factories.trajectories import StepFactory, TrajectoryFactory
from worker.tasks.transfers import run_export


@pytest.mark.django_db
@pytest.mark.parametrize("shape", Shape.values)
def test_an_export_of_each_shape_is_written(agent: Agent, project: Project, trainer: User, shape: str) -> None:
    caller, step = Caller(user=trainer), StepFactory.create(trajectory=TrajectoryFactory.create(agent=agent), index=0)
    add_correction(caller=caller, step=step, message="hello there")
    add_labels(caller=caller, trajectory=step.trajectory, answers=[Answer(field="hint", text="greet", step=step)])
    export = start_export(project=project, caller=caller, shape=SHAPES[shape], file_format="jsonl", query="")
    run_export(export.pk)
    export.refresh_from_db()
    assert (export.state, export.n_rows, export.n_left_out) == ("done", 1, 0)
