"""A dataset of the project, and trajectories to put into it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.trajectories.datasets.models import Dataset, Import
from apps.trajectories.models import Trajectory, TrajectoryState
from tests.apps.trajectories.datasets.importer import ImportRows, as_lines, import_file
from tests.factories.datasets import DatasetFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

AddTrajectory = Callable[..., Trajectory]


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> Path:
    """Files of exports and imports go here."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    return tmp_path


@pytest.fixture
def caller(owner: User) -> Caller:
    return Caller(user=owner)


@pytest.fixture
def fetch_json() -> Callable[[Path], list[dict[str, Any]]]:
    """Return a function that reads a file of JSON lines."""
    return lambda path: [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def dataset(project: Project) -> Dataset:
    return DatasetFactory.create(project=project, name="Refunds")


@pytest.fixture
def add_trajectory(agent: Agent) -> AddTrajectory:
    """Return a function that adds a complete trajectory of one step; `step` holds the step's own fields."""

    def add(*, step: dict[str, Any] | None = None, **fields: Any) -> Trajectory:
        sums = {"n_steps": 1, "n_prompt_tokens": 3, "n_completion_tokens": 2}
        state = {"state": TrajectoryState.COMPLETE, "completed_at": timezone.now(), "title": "Where is my parcel?"}
        row = TrajectoryFactory.create(agent=agent, **{**sums, **state, **fields})
        StepFactory.create(trajectory=row, index=0, **(step or {}))
        return row

    return add


@pytest.fixture
def trajectory(add_trajectory: AddTrajectory) -> Trajectory:
    return add_trajectory(reward=0.5)


@pytest.fixture
def import_rows(agent: Agent, caller: Caller) -> ImportRows:
    """Return a function that imports rows as lines of JSON."""

    def call(*rows: Any, **more: Any) -> Import:
        return import_file(as_lines(rows), **{"agent": agent, "caller": caller, **more})

    return call
