"""Complete trajectories to be graded, a live model on a fake engine, and a fake webhook."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.feedback.graders.models import DryRun, GraderVersion, Grading, WorkState
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.trajectories.models import Trajectory, TrajectoryState
from tests.factories.registry import AliasFactory, EngineFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.webhook import FakeWebhook, serve_webhook

MakeTrajectory = Callable[..., Trajectory]
MakeVersion = Callable[..., GraderVersion]


def grade_all(version: GraderVersion) -> None:
    """Line up every trajectory and grade until nothing is due."""
    line_up(version, list(Trajectory.objects.order_by("pk").values_list("pk", flat=True)))
    go_on(version)


def go_on(version: GraderVersion) -> None:
    for _ in range(20):
        if not grade_due(version.pk):
            return
    raise AssertionError


def state_of(trajectory: Trajectory) -> tuple[str, str]:
    row = Grading.objects.get(trajectory=trajectory)
    return row.state, row.error


@pytest.fixture
def make_trajectory(key: ApiKey) -> MakeTrajectory:
    """Return a function that makes a complete trajectory with one step that says `text`."""

    def make(text: str = "hi", *, metadata: dict[str, Any] | None = None, **fields: Any) -> Trajectory:
        ended = timezone.now() - timedelta(seconds=5)
        trajectory = TrajectoryFactory.create(
            agent=key.agent,
            state=TrajectoryState.COMPLETE,
            completed_at=ended,
            metadata=metadata or {},
            n_steps=1,
            **fields,
        )
        StepFactory.create(trajectory=trajectory, index=0, text=text, started_at=ended, ended_at=ended)
        return trajectory

    return make


@pytest.fixture
def caller(trainer: User) -> Caller:
    return Caller(user=trainer)


@pytest.fixture
def make_version(caller: Caller, project: Project) -> MakeVersion:
    """Return a function that makes a grader's first version; `tried`: with a dry run behind it."""

    def make(kind: str, *, name: str = "grader", tried: bool = True, **draft: Any) -> GraderVersion:
        version, _ = create_grader(caller=caller, project=project, name=name, kind=kind, draft=VersionDraft(**draft))
        if tried:
            DryRun.objects.create(version=version, n_wanted=1, state=WorkState.DONE)
        return version

    return make


@pytest.fixture
def engine(project: Project) -> Iterator[FakeEngine]:
    """The live model of the project, on a fake engine."""
    with FakeEngine() as fake:
        AliasFactory.create(version__policy__project=project)
        EngineFactory.create(base_url=fake.url)
        yield fake


@pytest.fixture
def webhook(settings: Settings) -> Iterator[FakeWebhook]:
    """A webhook on this machine, which operators allow."""
    settings.CLAW = settings.CLAW.model_copy(update={"webhook_hosts": ("127.0.0.1",)})
    with serve_webhook() as fake:
        yield fake
