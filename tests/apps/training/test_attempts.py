"""Claims, heartbeats, rescues."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from apps.accounts.access import Caller
from apps.training import attempts, services
from apps.training.fence import AttemptLost
from apps.training.models import Attempt, AttemptState, Run, RunState
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import LaunchRun, claim

Ready = list[Trajectory]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs whose message was queued."""
    runs: list[str] = []
    monkeypatch.setattr(attempts, "queue_task", lambda _name, run_id: runs.append(run_id))
    return runs


def reread(attempt: Attempt) -> Run:
    return Run.objects.get(pk=attempt.run_id)


def fall_silent(attempt: Attempt) -> Attempt:
    Attempt.objects.filter(pk=attempt.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    return Attempt.objects.select_related("run").get(pk=attempt.pk)


def lose(attempt: Attempt) -> None:
    assert attempts.mark_lost(fall_silent(attempt))


def test_a_run_is_claimed_once(launch: LaunchRun, two_ready: Ready) -> None:
    run = launch()
    attempt = claim(run)
    assert (attempt.number, attempt.state) == (1, AttemptState.RUNNING)
    assert reread(attempt).state == RunState.RUNNING
    assert attempts.claim_attempt(run.id, host="there") is None


def test_the_database_refuses_two_running_attempts(launch: LaunchRun, two_ready: Ready) -> None:
    attempt = claim(launch())
    with pytest.raises(IntegrityError), transaction.atomic():
        Attempt.objects.create(run=attempt.run, number=2, host="there")


def test_a_beat_tells_the_runs_state(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    attempt = claim(launch())
    assert attempts.beat_attempt(attempt) == RunState.RUNNING
    services.cancel_run(run=attempt.run, caller=owner_caller)
    assert attempts.beat_attempt(attempt) == RunState.CANCELLING


def test_only_silent_attempts_are_found(launch: LaunchRun, two_ready: Ready) -> None:
    attempt = claim(launch())
    limit = timezone.now() - timedelta(seconds=30)
    assert attempts.list_silent_attempts(before=limit) == []
    fall_silent(attempt)
    assert attempts.list_silent_attempts(before=limit) == [attempt]


def test_an_attempt_that_moved_again_is_not_lost(launch: LaunchRun, two_ready: Ready) -> None:
    silent = fall_silent(claim(launch()))
    attempts.beat_attempt(silent)
    assert not attempts.mark_lost(silent)


def test_a_lost_attempt_is_fenced_off_and_its_run_queued_again(
    launch: LaunchRun, two_ready: Ready, sent: list[str]
) -> None:
    attempt = claim(launch())
    lose(attempt)
    for change in (
        lambda: attempts.beat_attempt(attempt),
        lambda: attempts.set_process_group(attempt, 1),
        lambda: attempts.end_attempt(attempt, run_state=RunState.FAILED),
    ):
        with pytest.raises(AttemptLost):
            change()
    attempts.requeue_orphans()
    assert reread(attempt).state == RunState.QUEUED
    assert sent == [attempt.run_id]
    assert claim(attempt.run).number == 2


def test_a_run_whose_attempt_lives_is_left_alone(launch: LaunchRun, two_ready: Ready) -> None:
    attempt = claim(launch())
    attempts.requeue_orphans()
    assert reread(attempt).state == RunState.RUNNING


def test_a_cancelled_orphan_ends_instead(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    attempt = claim(launch())
    services.cancel_run(run=attempt.run, caller=owner_caller)
    lose(attempt)
    attempts.requeue_orphans()
    assert reread(attempt).state == RunState.CANCELLED


def test_after_five_lost_attempts_it_gives_up_in_words(launch: LaunchRun, two_ready: Ready) -> None:
    run = launch()
    for _ in range(attempts.MAX_LOST_ATTEMPTS):
        lose(claim(run))
        attempts.requeue_orphans()
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "5 attempts in a row were lost" in run.error


def test_a_resumed_run_may_lose_attempts_anew(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    run = launch()
    for _ in range(attempts.MAX_LOST_ATTEMPTS):
        lose(claim(run))
        attempts.requeue_orphans()
    services.resume_run(run=run, caller=owner_caller)
    assert attempts.count_lost_attempts(run) == 0


def test_a_worker_that_must_go_leaves_the_run_queued(launch: LaunchRun, two_ready: Ready, sent: list[str]) -> None:
    attempt = claim(launch())
    attempts.end_attempt(attempt, run_state=RunState.QUEUED, error="the worker was asked to stop")
    run = reread(attempt)
    assert (run.state, run.error, run.ended_at) == (RunState.QUEUED, "", None)
    assert sent == [run.id]


def test_a_worker_that_must_go_still_honours_a_cancel(
    launch: LaunchRun, two_ready: Ready, owner_caller: Caller
) -> None:
    attempt = claim(launch())
    services.cancel_run(run=attempt.run, caller=owner_caller)
    attempts.end_attempt(attempt, run_state=RunState.QUEUED)
    assert reread(attempt).state == RunState.CANCELLED


def test_a_lost_message_is_sent_again_once_in_a_while(launch: LaunchRun, two_ready: Ready, sent: list[str]) -> None:
    run = launch()
    attempts.resend_queued_runs(after_s=60)
    assert sent == []
    Run.objects.update(sent_at=timezone.now() - timedelta(minutes=5))
    attempts.resend_queued_runs(after_s=60)
    attempts.resend_queued_runs(after_s=60)
    assert sent == [run.id]


def test_the_status_line_is_only_for_running_runs(launch: LaunchRun, two_ready: Ready, owner_caller: Caller) -> None:
    attempt = claim(launch())
    attempts.set_status(attempt, "x" * 400)
    assert reread(attempt).status_line == "x" * 300
    services.cancel_run(run=attempt.run, caller=owner_caller)
    attempts.set_status(attempt, "trains")
    assert reread(attempt).status_line.startswith("ends after a checkpoint")


@pytest.mark.django_db(transaction=True)
def test_of_many_workers_one_claims(launch: LaunchRun, two_ready: Ready) -> None:
    run = launch()
    claimed: list[Attempt | None] = []

    def claim_one() -> None:
        try:
            claimed.append(attempts.claim_attempt(run.id, host="here"))
        finally:
            connection.close()

    threads = [threading.Thread(target=claim_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([attempt for attempt in claimed if attempt]) == 1
