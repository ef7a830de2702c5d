"""Browsers of each role, and one trajectory, run and model line to look at."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import Client
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.registry.models import Policy, Version
from apps.registry.services import ensure_policy
from apps.training.models import Run
from apps.training.services import launch_run
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from tests.apps.console.sockets import Socket
from tests.factories.trajectories import StepFactory, TrajectoryFactory

BrowserOf = Callable[[User], Client]


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., Socket]]:
    """Return a function that makes sockets; close them all, whatever the test saw.

    A server's side that is left to the end of the event loop can lose the loop's one cancellation, and wait for ever.
    """
    made: list[Socket] = []

    def make(*where: Any, **how: Any) -> Socket:
        made.append(Socket(*where, **how))
        return made[-1]

    yield make
    for socket in made:
        await socket.close()
    await sync_to_async(connections.close_all)()  # of its thread; else the test database cannot be dropped


@pytest.fixture
def policy(project: Project) -> Policy:
    return ensure_policy(project=project, slug="shop", base_model="tiny", base_model_dir="models/tiny")


@pytest.fixture
def base(policy: Policy) -> Version:
    """Version 0."""
    return policy.versions.get()


@pytest.fixture
def add_trajectory(agent: Agent, key: ApiKey, base: Version) -> Callable[..., Trajectory]:
    """Return a function that adds a complete trajectory of one step."""

    def add(*, title: str = "Where is my parcel?", step: dict[str, Any] | None = None, **fields: Any) -> Trajectory:
        state = {"state": TrajectoryState.COMPLETE, "completed_at": timezone.now(), "n_steps": 1}
        row = TrajectoryFactory.create(agent=agent, key=key, title=title, **{**state, **fields})
        StepFactory.create(trajectory=row, index=0, **{"version": base, **(step or {})})
        return row

    return add


@pytest.fixture
def trajectory(add_trajectory: Callable[..., Trajectory]) -> Trajectory:
    return add_trajectory()


@pytest.fixture
def step(trajectory: Trajectory) -> Step:
    return trajectory.steps.get()


@pytest.fixture
def ready(add_trajectory: Callable[..., Trajectory]) -> list[Trajectory]:
    """Two trajectories that a run can learn from."""
    return [add_trajectory(reward=1.0), add_trajectory(reward=-1.0)]


@pytest.fixture
def run(project: Project, owner: User, ready: list[Trajectory]) -> Run:
    """A queued run."""
    recipe = {"n_steps": 3, "trajectories_per_step": 2}
    return launch_run(project=project, caller=Caller(user=owner), recipe=recipe, selection={}, name="first")


@pytest.fixture
def owner_browser(owner: User, browser_of: BrowserOf) -> Client:
    return browser_of(owner)


@pytest.fixture
def reviewer_browser(mate: User, browser_of: BrowserOf) -> Client:
    return browser_of(mate)


@pytest.fixture
def trainer_browser(trainer: User, browser_of: BrowserOf) -> Client:
    return browser_of(trainer)


@pytest.fixture
def viewer_browser(viewer: User, browser_of: BrowserOf) -> Client:
    return browser_of(viewer)


@pytest.fixture
def stranger_browser(stranger: User, browser_of: BrowserOf) -> Client:
    return browser_of(stranger)


@pytest.fixture
def anonymous_browser(db: None) -> Client:
    return Client()
