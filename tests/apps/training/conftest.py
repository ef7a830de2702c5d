"""A policy whose base version is live, and a pool that a test fills."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import AdapterFiles, TrainBatch, TrainerEvent
from apps.registry import services as registry
from apps.registry.models import Policy, Version
from apps.training import attempts, services
from apps.training.models import Attempt, Run
from apps.trajectories.models import Trajectory, TrajectoryState
from tests.factories.trajectories import StepFactory, TrajectoryFactory
from tests.fakes.probe import answer_probe

AddTrajectory = Callable[..., Trajectory]
LaunchRun = Callable[..., Run]

RECIPE: dict[str, Any] = {"n_steps": 3, "trajectories_per_step": 2, "wait_for_data_s": 30}


@pytest.fixture
def policy(project: Project) -> Policy:
    return registry.ensure_policy(project=project, slug="shop", base_model="tiny", base_model_dir="models/tiny")


@pytest.fixture
def base(policy: Policy) -> Version:
    """Version 0."""
    return policy.versions.get()


@pytest.fixture
def add_trajectory(agent: Agent, base: Version) -> AddTrajectory:
    """Return a function that adds a trajectory which is ready to train on, unless told otherwise."""

    def add(
        *,
        reward: float | None = 1.0,
        version: Version | None = None,
        steps: Sequence[dict[str, Any]] = ({},),
        **fields: Any,
    ) -> Trajectory:
        state = {"state": TrajectoryState.COMPLETE, "completed_at": timezone.now()}
        row = TrajectoryFactory.create(agent=agent, reward=reward, n_steps=len(steps), **{**state, **fields})
        for index, step in enumerate(steps):
            StepFactory.create(trajectory=row, index=index, **{"version": version or base, **step})
        return row

    return add


@pytest.fixture
def two_ready(add_trajectory: AddTrajectory) -> list[Trajectory]:
    """Two ready trajectories of different worth: one step's batch."""
    return [add_trajectory(reward=1.0), add_trajectory(reward=0.0)]


@pytest.fixture
def owner_caller(owner: User) -> Caller:
    return Caller(user=owner)


@pytest.fixture
def launch(project: Project, owner_caller: Caller) -> LaunchRun:
    """Return a function that launches a run as the owner."""

    def launch_with(*, selection: dict[str, Any] | None = None, **recipe: Any) -> Run:
        return services.launch_run(
            project=project, caller=owner_caller, recipe={**RECIPE, **recipe}, selection=selection or {}
        )

    return launch_with


def claim(run: Run) -> Attempt:
    """Take the run as a worker would."""
    attempt = attempts.claim_attempt(run.id, host="here")
    assert attempt is not None
    return attempt


def finish_step(batch: TrainBatch, folder: Path) -> TrainerEvent:
    """Return the event of a trainer that trained on this batch; its adapter is on disk."""
    adapter = folder / f"step-{batch.step:06d}"
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    return TrainerEvent(
        kind="step",
        step=batch.step,
        at=1.0,
        metrics={"loss": 0.25, "kl": 0.01},
        adapter=AdapterFiles(path=str(adapter), sha256=hash_folder(adapter)),
        probe=answer_probe(batch.probe),
    )
