"""A worker that is killed while it grades: a real process, kill -9. What is slow, but alive, is left alone."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from apps.accounts.access import Caller
from apps.core.contracts.tasks import GRADE_TRAJECTORIES, RUN_DRY_RUN
from apps.feedback.graders import alive, running, tending
from apps.feedback.graders.models import DryRun, GraderVersion, Grading, GradingState, WorkState
from apps.feedback.graders.running import grade_due, line_up
from apps.feedback.graders.services import start_dry_run
from apps.feedback.graders.tending import tend_graders
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label
from tests.apps.feedback.graders.conftest import *  # noqa: F403 (trajectories and graders)
from tests.apps.feedback.graders.conftest import MakeTrajectory, MakeVersion
from tests.fakes.webhook import FakeWebhook
from tests.worker.tasks.conftest import ROOT, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

TASK = "import sys, django; django.setup(); from worker.tasks import grading; grading.{task}(sys.argv[1])"
SLOW_S = 60.0


@pytest.fixture
def version(make_version: MakeVersion, make_trajectory: MakeTrajectory, webhook: FakeWebhook) -> GraderVersion:
    make_trajectory("x")
    return make_version("webhook", settings={"url": webhook.url, "timeout_s": 60})


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What the clock puts on the queue."""
    sent: list[tuple[object, ...]] = []
    monkeypatch.setattr(tending, "queue_task", lambda *task: sent.append(task))
    return sent


@pytest.fixture
def short_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life twenty times a second; what gives none for a second is lost."""
    monkeypatch.setattr(alive, "BEAT_S", 0.05)
    monkeypatch.setattr(running, "LOST_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(tending, "LOST_AFTER", timedelta(seconds=1))


def kill_midway(task: str, object_id: str, environment: dict[str, str], webhook: FakeWebhook) -> None:
    """Have a worker process do the task, and kill it while it waits for the webhook."""
    webhook.pause_s = SLOW_S
    argv = [sys.executable, "-W", "ignore", "-c", TASK.format(task=task), object_id]
    own = {"CLAW_WEBHOOK_HOSTS": "127.0.0.1", "CLAW_SECRET_KEY": settings.SECRET_KEY}
    with subprocess.Popen(argv, env=environment | own, cwd=ROOT) as worker:
        try:
            wait_for(lambda: bool(webhook.calls))
        finally:
            worker.kill()
    webhook.pause_s = 0


@contextmanager
def at_work(work: Callable[[str], object], object_id: str) -> Iterator[threading.Thread]:
    """Have a thread do the work."""

    def do() -> None:
        try:
            work(object_id)
        finally:
            connection.close()

    thread = threading.Thread(target=do)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(30)


def test_what_a_killed_worker_had_claimed_is_taken_up_after_ninety_seconds(
    version: GraderVersion, webhook: FakeWebhook, process_environment: dict[str, str], queued: list[object]
) -> None:
    line_up(version, [version.grader.project.trajectories.get().pk])
    kill_midway("grade_trajectories", version.pk, process_environment, webhook)
    assert Grading.objects.get().state == GradingState.RUNNING
    for age, sent in ((60, []), (91, [(GRADE_TRAJECTORIES, version.pk)])):
        Grading.objects.update(claimed_at=timezone.now() - timedelta(seconds=age))
        tend_graders()
        assert queued == sent
    assert grade_due(version.pk)
    assert (Grading.objects.get().state, Label.objects.count()) == (GradingState.DONE, 1)


def test_a_dry_run_whose_worker_was_killed_is_begun_again_after_ninety_seconds_and_once(
    caller: Caller,
    version: GraderVersion,
    webhook: FakeWebhook,
    process_environment: dict[str, str],
    queued: list[object],
) -> None:
    dry_run = start_dry_run(caller=caller, version=version)
    kill_midway("run_dry_run", dry_run.pk, process_environment, webhook)
    mine = DryRun.objects.filter(pk=dry_run.pk)
    assert mine.get().state == WorkState.RUNNING
    for age, sent in ((60, []), (91, [(RUN_DRY_RUN, dry_run.pk)])):
        mine.update(touched_at=timezone.now() - timedelta(seconds=age))
        tend_graders()
        tend_graders()
        assert queued == sent
    run_dry_run(dry_run.pk)
    assert (mine.get().state, len(webhook.calls)) == (WorkState.DONE, 2)


@pytest.mark.usefixtures("short_claims")
def test_a_slow_webhook_is_waited_for(version: GraderVersion, webhook: FakeWebhook, queued: list[object]) -> None:
    webhook.pause_s = 2.5
    line_up(version, [version.grader.project.trajectories.get().pk])
    with at_work(grade_due, version.pk) as thread:
        wait_for(lambda: bool(webhook.calls))
        while thread.is_alive():
            tend_graders()
            thread.join(0.1)
    grading = Grading.objects.get()
    assert (grading.state, grading.n_tries, len(webhook.calls), queued) == (GradingState.DONE, 1, 1, [])


@pytest.mark.usefixtures("short_claims")
def test_a_slow_dry_run_is_waited_for_and_a_second_message_does_nothing(
    caller: Caller, version: GraderVersion, webhook: FakeWebhook, queued: list[object]
) -> None:
    webhook.pause_s = 2.5
    dry_run = start_dry_run(caller=caller, version=version)
    with at_work(run_dry_run, dry_run.pk) as thread:
        wait_for(lambda: bool(webhook.calls))
        run_dry_run(dry_run.pk)
        while thread.is_alive():
            tend_graders()
            thread.join(0.1)
    assert (DryRun.objects.get(pk=dry_run.pk).state, len(webhook.calls), queued) == (WorkState.DONE, 1, [])


@pytest.mark.usefixtures("short_claims")
def test_a_sign_of_life_that_fails_is_followed_by_others() -> None:
    beats = []

    def beat() -> None:
        beats.append(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / %s", [len(beats) - 1])  # the first one cannot be

    with alive.kept_alive(beat):
        wait_for(lambda: len(beats) > 2)


def age_claims() -> None:
    """Have the clock believe that whoever is at work is lost, as one that is cut off from Postgres."""
    Grading.objects.update(claimed_at=timezone.now() - timedelta(seconds=91))
    DryRun.objects.update(touched_at=timezone.now() - timedelta(seconds=91))
    tend_graders()


LATE = [(500, b""), (400, b""), (200, b'{"value": -1}'), (200, b'{"value": null}')]


@pytest.mark.parametrize(("status", "content"), LATE)
def test_who_comes_back_too_late_changes_nothing(
    version: GraderVersion, webhook: FakeWebhook, queued: list[object], status: int, content: bytes
) -> None:
    line_up(version, [version.grader.project.trajectories.get().pk])
    before, (webhook.pause_s, webhook.status, webhook.content) = webhook.content, (1.5, status, content)
    with at_work(grade_due, version.pk):
        wait_for(lambda: bool(webhook.calls))
        webhook.pause_s, webhook.status, webhook.content = 0, 200, before
        age_claims()
        assert grade_due(version.pk)
    grading = Grading.objects.get()
    assert (grading.state, grading.n_tries, [label.value for label in Label.objects.all()]) == (
        GradingState.DONE,
        2,
        [1],
    )


def test_who_comes_back_too_late_ends_no_dry_run_again(
    caller: Caller, version: GraderVersion, webhook: FakeWebhook, queued: list[object]
) -> None:
    dry_run = start_dry_run(caller=caller, version=version)
    webhook.pause_s, webhook.status = 1.5, 400
    with at_work(run_dry_run, dry_run.pk):
        wait_for(lambda: bool(webhook.calls))
        webhook.pause_s, webhook.status = 0, 200
        age_claims()
        run_dry_run(dry_run.pk)
    assert DryRun.objects.get(pk=dry_run.pk).state == WorkState.DONE


def test_the_signs_of_who_comes_back_too_late_keep_nothing_of_others(
    version: GraderVersion, webhook: FakeWebhook, queued: list[object]
) -> None:
    line_up(version, [version.grader.project.trajectories.get().pk])
    [mine] = running._claim(version)
    age_claims()
    [others] = running._claim(version)
    Grading.objects.update(claimed_at=timezone.now() - timedelta(seconds=91))
    running._renew([mine])
    assert running.release_old_claims() == 1
    assert others.n_tries == 2
