"""The entry points of graders: what is due is graded at a stretch, then others of the queue have their turn."""

import pytest

from apps.accounts.access import Caller
from apps.core.contracts.tasks import GRADE_TRAJECTORIES
from apps.feedback.graders.models import Backfill, DryRun, WorkState
from apps.feedback.graders.running import line_up
from apps.feedback.graders.services import start_backfill, start_dry_run
from apps.feedback.models import Label
from apps.trajectories.models import Trajectory
from tests.apps.feedback.graders.conftest import *  # noqa: F403 (trajectories and graders)
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion
from worker.tasks import grading

pytestmark = pytest.mark.django_db


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What would be put on the queue."""
    sent: list[tuple[object, ...]] = []
    monkeypatch.setattr(grading, "queue_task", lambda *task: sent.append(task))
    monkeypatch.setattr("apps.feedback.graders.tending.queue_task", lambda *task: sent.append(task))
    return sent


def test_from_a_dry_run_to_a_backfill(
    caller: Caller, make_version: MakeVersion, make_trajectory: MakeTrajectory, queued: list[tuple[object, ...]]
) -> None:
    for _ in range(20):
        make_trajectory("x")
    version = make_version("regex", settings={"pattern": "x"}, tried=False)
    dry_run = start_dry_run(caller=caller, version=version)
    grading.run_dry_run(dry_run.pk)
    assert DryRun.objects.get().state == WorkState.DONE
    backfill = start_backfill(caller=caller, version=version)
    grading.fill_backfill(backfill.pk)
    assert queued == [(GRADE_TRAJECTORIES, version.pk)]
    grading.grade_trajectories(version.pk)
    assert (Label.objects.count(), len(queued)) == (20, 1)
    grading.tend_graders()
    assert Backfill.objects.get().state == WorkState.DONE


def test_much_work_is_cut_into_stretches(
    make_version: MakeVersion,
    make_trajectory: MakeTrajectory,
    queued: list[tuple[object, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(40):
        make_trajectory("x")
    version = make_version("regex", settings={"pattern": "x"})
    monkeypatch.setattr(grading, "AT_A_STRETCH_S", 0.0)
    line_up(version, list(Trajectory.objects.values_list("pk", flat=True)))
    grading.grade_trajectories(version.pk)
    assert 0 < Label.objects.count() < 40
    assert queued == [(GRADE_TRAJECTORIES, version.pk)]
