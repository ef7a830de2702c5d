"""A queue of three trajectories, two reviews each, and the people around it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, Role, Team, User
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import ReviewQueue
from apps.feedback.queues.services import create_queue
from apps.trajectories.models import Trajectory
from tests.factories.accounts import MembershipFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

Add = Callable[..., Trajectory]
MakeQueue = Callable[..., ReviewQueue]


def by(user: User) -> Caller:
    return Caller(user=user)


@pytest.fixture
def second(team: Team) -> User:
    """Another reviewer of the team."""
    return MembershipFactory.create(team=team, role=Role.REVIEWER, user__email="second@example.org").user


@pytest.fixture
def add(agent: Agent) -> Add:
    """Return a function that adds a complete trajectory of one step."""

    def add_one(**fields: Any) -> Trajectory:
        state = {"state": "complete", "completed_at": timezone.now(), "n_steps": 1}
        row = TrajectoryFactory.create(agent=agent, **{**state, **fields})
        StepFactory.create(trajectory=row, index=0)
        return row

    return add_one


@pytest.fixture
def rows(add: Add) -> list[Trajectory]:
    return [add(title=f"task {number}") for number in range(3)]


@pytest.fixture
def make_queue(project: Project, trainer: User) -> MakeQueue:
    """Return a function that makes a queue, with trajectories in it."""

    def make(*rows: Trajectory, **settings: Any) -> ReviewQueue:
        queue = create_queue(
            caller=by(trainer), project=project, settings={"name": "first", "n_reviews": 2, **settings}
        )
        if rows:
            add_trajectories(caller=by(trainer), queue=queue, ids=[row.pk for row in rows])
        return queue

    return make


@pytest.fixture
def queue(make_queue: MakeQueue, rows: list[Trajectory]) -> ReviewQueue:
    return make_queue(*rows)
