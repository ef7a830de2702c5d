"""A queue of three trajectories, two reviews each, and the people around it; and a world in which somebody reviews one
blind that others have judged."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, Role, Team, User
from apps.core.errors import ServiceError
from apps.feedback.graders.models import DryRun
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.preferences.services import add_correction
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import Review, ReviewQueue
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from apps.feedback.services import Answer, add_label, add_labels
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from apps.trajectories.models import Trajectory
from tests.factories.accounts import MembershipFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

Add = Callable[..., Trajectory]
MakeQueue = Callable[..., ReviewQueue]


def by(user: User) -> Caller:
    return Caller(user=user)


def run_at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Do them at the same moment, each with a connection of its own; return what each gave, or the error it met."""
    barrier = Barrier(len(jobs))

    def work(job: Callable[[], Any]) -> Any:
        try:
            barrier.wait(timeout=20)
            return job()
        except ServiceError as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(work, jobs))


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


@dataclass(frozen=True, kw_only=True)
class World:
    """A review that the mate holds, and by name the ids of what tells of its trajectory."""

    review: Review
    ids: dict[str, str]


@pytest.fixture
def world(make_queue: MakeQueue, add: Add, project: Project, mate: User, trainer: User) -> World:
    """The trainer has judged what the mate reviews: with a label of the whole and of its step, and a correction."""
    trajectory, other = add(group="g"), add(group="g")
    queue = make_queue(trajectory)
    review, step, author = take_review(caller=by(mate), queue=queue), trajectory.steps.get(), by(trainer)
    assert review is not None
    label = add_label(caller=author, trajectory=trajectory, value=-0.37, text="dull words")
    add_label(caller=author, trajectory=trajectory, step=step, value=-0.37)
    add_labels(
        caller=author, trajectory=trajectory, answers=[Answer(field="hint", text="dull words to the model", step=step)]
    )
    add_correction(caller=author, step=step, message="a better answer")
    add_label(caller=author, trajectory=other, value=1)  # so that no mean over a dataset is that of one trajectory
    dataset = create_dataset(project=project, caller=author, name="d")
    add_ids_to_dataset(dataset=dataset, caller=author, ids=[other.pk])
    empty = take_snapshot(dataset=dataset, caller=author)
    add_ids_to_dataset(dataset=dataset, caller=author, ids=[trajectory.pk])
    snapshot = take_snapshot(dataset=dataset, caller=author)
    draft = VersionDraft(settings={"pattern": "x"})
    version, _ = create_grader(caller=author, project=project, name="x", kind="regex", draft=draft)
    result: dict[str, Any] = {
        "trajectory": trajectory.pk,
        "title": "",
        "step": None,
        "answer": "hi",
        "value": -0.37,
        "reward": -0.37,
    }
    result |= {"text": "dull words", "hint": "", "problem": "", "people": -0.37, "people_said": [-0.37]}
    agreement = {"n": 1, "n_same": 1, "kappa": None, "correlation": None, "mean_difference": 0.0}
    dry_run = DryRun.objects.create(version=version, n_wanted=1, state="done", results=[result], agreement=agreement)
    rows = {"trajectory": trajectory, "other": other, "step": step, "label": label, "dataset": dataset, "queue": queue}
    rows |= {"snapshot": snapshot, "empty": empty, "dry_run": dry_run, "grader": version.grader}
    return World(review=review, ids={name: str(row.pk) for name, row in rows.items()})
