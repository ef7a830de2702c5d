"""The process lives of a run: who holds it, is it alive, how did it end. Every change is fenced by the attempt's row.

A worker whose attempt was declared lost can change nothing any more: each change first finds the attempt RUNNING. Knows
nothing of processes; `worker.tasks` does.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from apps.core.contracts.tasks import TRAIN_RUN
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.training.fence import AttemptLost, lock_attempt
from apps.training.history import record_run_event
from apps.training.leases import release_batches
from apps.training.models import Attempt, AttemptState, Run, RunState

MAX_LOST_ATTEMPTS = 5
RESUMED = "resumed"


@transaction.atomic
def claim_attempt(run_id: str, *, host: str) -> Attempt | None:
    """Take a queued run for this worker. None when it is not queued: the message came twice, or too late."""
    queued = Run.objects.filter(pk=run_id, state=RunState.QUEUED)
    if queued.update(state=RunState.RUNNING, status_line="starts the trainer", error="", ended_at=None) != 1:
        return None
    Run.objects.filter(pk=run_id, started_at=None).update(started_at=timezone.now())
    run = Run.objects.select_related("policy", "start_version", "project__team").get(pk=run_id)
    last = run.attempts.aggregate(last=Max("number"))["last"] or 0
    attempt = Attempt.objects.create(run=run, number=last + 1, host=host)
    record_run_event(run, "attempt.started", f"attempt {attempt.number} started on {host}")
    return attempt


def set_process_group(attempt: Attempt, process_group: int) -> None:
    """Remember which processes to end if this worker dies."""
    _change_running(attempt, process_group=process_group)


def beat_attempt(attempt: Attempt) -> RunState:
    """Say that the attempt is alive; returns the run's state, which may ask for an end."""
    _change_running(attempt, heartbeat_at=timezone.now())
    return RunState(Run.objects.values_list("state", flat=True).get(pk=attempt.run_id))


def _change_running(attempt: Attempt, **changes: object) -> None:
    if Attempt.objects.filter(pk=attempt.pk, state=AttemptState.RUNNING).update(**changes) != 1:
        raise AttemptLost(f"attempt {attempt.number} of {attempt.run_id} was taken over")


def set_status(attempt: Attempt, line: str) -> None:
    """Say in a few words what the run does or waits for."""
    running = Run.objects.filter(pk=attempt.run_id, state=RunState.RUNNING).exclude(status_line=line[:300])
    if running.update(status_line=line[:300]):
        publish_news(attempt.run.project_id, kind="run", object_id=attempt.run_id)


@transaction.atomic
def end_attempt(attempt: Attempt, *, run_state: RunState, error: str = "", exit_code: int | None = None) -> None:
    """Close the attempt and put the run into `run_state`: a final one, or QUEUED to go on later."""
    run = lock_attempt(attempt)
    if run_state == RunState.QUEUED and run.state == RunState.CANCELLING:
        run_state = RunState.CANCELLED
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.ENDED, ended_at=timezone.now(), error=error, exit_code=exit_code
    )
    move_run(run, run_state, error=error)


@transaction.atomic
def crash_attempt(attempt: Attempt, *, error: str, exit_code: int) -> None:
    """Close an attempt whose trainer was killed or hung, and queue the run again: it goes on from its checkpoint."""
    run = lock_attempt(attempt)
    Attempt.objects.filter(pk=attempt.pk).update(
        state=AttemptState.CRASHED, ended_at=timezone.now(), error=error, exit_code=exit_code
    )
    record_run_event(run, "attempt.crashed", f"attempt {attempt.number} crashed and is made again: {error}")
    move_run(run, RunState.CANCELLED if run.state == RunState.CANCELLING else RunState.QUEUED)


def count_crashes(attempt: Attempt) -> int:
    """Return how many attempts of the run crashed since a step was last finished, or a person last resumed it."""
    return _count_since_progress(attempt.run, AttemptState.CRASHED)


def note_fallback(attempt: Attempt, words: str) -> None:
    """Write down that a checkpoint was damaged and an older one was taken."""
    record_run_event(attempt.run, "checkpoint.damaged", words)


def move_run(run: Run, state: RunState, *, error: str = "") -> None:
    """Inside a transaction that holds the run's row: end it, or queue it again."""
    now = timezone.now()
    run.state, run.status_line = state, ""
    if run.is_final:
        run.error = error if state == RunState.FAILED else ""
        run.ended_at = now
        release_batches(run)
    else:
        run.status_line = "waits for a worker"
        run.sent_at = now
        queue_task(TRAIN_RUN, run.id)
    run.save(update_fields=["state", "status_line", "error", "ended_at", "sent_at"])
    record_run_event(run, f"run.{state}", error or f"run {state}")


def list_silent_attempts(*, before: datetime) -> list[Attempt]:
    """Return the running attempts that gave no sign of life since `before`."""
    silent = Attempt.objects.filter(state=AttemptState.RUNNING, heartbeat_at__lt=before)
    return list(silent.select_related("run"))


def mark_lost(attempt: Attempt) -> bool:
    """Take the attempt from its worker, unless it has moved since `attempt` was read."""
    unchanged = Attempt.objects.filter(pk=attempt.pk, state=AttemptState.RUNNING, heartbeat_at=attempt.heartbeat_at)
    words = f"its worker on {attempt.host} stopped reporting"
    if unchanged.update(state=AttemptState.LOST, ended_at=timezone.now(), error=words) != 1:
        return False
    record_run_event(attempt.run, "attempt.lost", f"attempt {attempt.number} is lost: {words}")
    return True


def requeue_orphans() -> None:
    """Queue every run that should be running but that no attempt holds; give up after too many lost attempts."""
    held = Attempt.objects.filter(state=AttemptState.RUNNING).values("run_id")
    orphans = Run.objects.filter(state__in=[RunState.RUNNING, RunState.CANCELLING]).exclude(pk__in=held)
    for run_id in orphans.values_list("pk", flat=True):
        _requeue_orphan(run_id)


@transaction.atomic
def _requeue_orphan(run_id: str) -> None:
    run = Run.objects.select_for_update().get(pk=run_id)
    is_held = run.attempts.filter(state=AttemptState.RUNNING).exists()
    if is_held or run.state not in (RunState.RUNNING, RunState.CANCELLING):
        return
    if run.state == RunState.CANCELLING:
        move_run(run, RunState.CANCELLED)
    elif count_lost_attempts(run) >= MAX_LOST_ATTEMPTS:
        words = (
            f"{MAX_LOST_ATTEMPTS} attempts in a row were lost; look at the worker's host and its memory, then resume"
        )
        move_run(run, RunState.FAILED, error=words)
    else:
        move_run(run, RunState.QUEUED)


def count_lost_attempts(run: Run) -> int:
    """Return how many attempts were lost since a step was last finished, or a person last resumed the run."""
    return _count_since_progress(run, AttemptState.LOST)


def _count_since_progress(run: Run, state: AttemptState) -> int:
    progress = run.metrics.aggregate(last=Max("at"))["last"]
    resumed = run.events.filter(kind=RESUMED).aggregate(last=Max("at"))["last"]
    since = max((moment for moment in (progress, resumed) if moment is not None), default=run.created_at)
    return run.attempts.filter(state=state, ended_at__gte=since).count()


def resend_queued_runs(*, after_s: float) -> None:
    """Send the message again for runs that have been queued for a while: it may be lost. A second one does no harm."""
    now = timezone.now()
    waiting = Run.objects.filter(state=RunState.QUEUED, sent_at__lt=now - timedelta(seconds=after_s))
    for run in waiting:
        if Run.objects.filter(pk=run.pk, state=RunState.QUEUED, sent_at=run.sent_at).update(sent_at=now):
            queue_task(TRAIN_RUN, run.id)
