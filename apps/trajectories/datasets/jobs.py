"""How exports and imports live as jobs: claimed by one worker, alive by a beat, left behind by a killed one.

Knows nothing of what a job does.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from apps.core.errors import ServiceError
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.trajectories.datasets.models import Export, Import, JobState
from apps.trajectories.datasets.storage import is_disk_full, list_folders, remove_folder

log = structlog.get_logger(__name__)

SILENT_S = 60.0
BEAT_S = 5.0
SLICE_S = 20.0  # of one worker's time; then others have their turn
RESEND_S = 120.0
MAX_TRIES = 5

J = TypeVar("J", Export, Import)
Transfer = Export | Import


class LostJob(Exception):
    """Another worker has the job, or somebody cancelled it: this one stops without a word."""


class DeadlyJob(ServiceError):
    """No worker came through with the job."""


def claim_job(rows: QuerySet[J], job_id: str) -> bool:
    """Take a job that waits or whose worker fell silent; False when it is not to be had."""
    now = timezone.now()
    silent = Q(state=JobState.RUNNING, beat_at__lt=now - timedelta(seconds=SILENT_S))
    free = rows.filter(Q(state=JobState.QUEUED) | silent, pk=job_id)
    taken = free.update(state=JobState.RUNNING, claim=uuid4().hex, beat_at=now, n_tries=F("n_tries") + 1)
    if taken:
        rows.filter(pk=job_id, started_at=None).update(started_at=now)
    return bool(taken)


def _own_row(job: Transfer) -> QuerySet[Any]:
    """The job's row, as long as the claim is the worker's."""
    return _row_of(job).filter(claim=job.claim, state=JobState.RUNNING)


def _row_of(job: Transfer) -> QuerySet[Any]:
    rows: QuerySet[Any] = type(job).objects.filter(pk=job.pk)
    return rows


def advance_job(job: Transfer, **changes: object) -> None:
    """Store progress as the worker that has the claim. Raises LostJob when it has it no more."""
    if not _own_row(job).update(beat_at=timezone.now(), n_tries=0, **changes):
        raise LostJob(job.pk)
    publish_news(job.project_id, kind=_kind_of(job), object_id=job.pk)
    job.refresh_from_db(fields=["beat_at", *changes])


def pause_job(job: Transfer, task: str) -> None:
    """Let others have the worker: the job goes back into its queue and on from there."""
    advance_job(job, state=JobState.QUEUED, sent_at=timezone.now())
    queue_task(task, job.pk)


def end_job(job: Transfer, state: JobState, *, error: str = "", **changes: object) -> None:
    """Store how a job ended, as the worker that has the claim. Raises LostJob when it has it no more."""
    advance_job(job, state=state, error=error, ended_at=timezone.now(), **changes)


def check_tries(job: Transfer) -> None:
    """Raise DeadlyJob when workers died at it again and again: it would take the next one too."""
    if job.n_tries > MAX_TRIES:
        raise DeadlyJob(f"{MAX_TRIES} workers in a row came to nothing at it: is it too large for their memory?")


@contextmanager
def failing_in_words(job: Transfer, *, again: str) -> Iterator[None]:
    """End the job as failed when the block cannot go on, saying why; after it the job's state is known.

    A job that is lost is left to whom it belongs, and one whose disk is out of order to its next turn.
    """
    try:
        yield
    except LostJob:
        log.info("job.lost", job=job.pk)
        job.refresh_from_db(fields=["state"])
    except Exception as error:  # whatever it is, a row that says "running" for ever would be worse
        if isinstance(error, OSError) and not is_disk_full(error):
            raise
        with suppress(LostJob):
            end_job(job, JobState.FAILED, error=_explain(error, job.pk, again=again))


def _explain(error: Exception, job_id: str, *, again: str) -> str:
    if isinstance(error, OSError):
        return f"the disk is full: make room, then {again}"
    if isinstance(error, ServiceError):
        return error.message
    log.error("job.failed", job=job_id, exc_info=error)
    return f"a fault of ours ({type(error).__name__}): the worker's log tells more, under {job_id}"


def cancel_job(job: Transfer) -> bool:
    """End a job that has not ended; its worker hears of it at its next step. False when it had ended."""
    standing = _row_of(job).filter(state__in=[JobState.QUEUED, JobState.RUNNING])
    changed = standing.update(state=JobState.CANCELLED, ended_at=timezone.now())
    if changed:
        publish_news(job.project_id, kind=_kind_of(job), object_id=job.pk)
    job.refresh_from_db()
    return bool(changed)


def resend_jobs(rows: QuerySet[J], task: str, *, now: datetime | None = None) -> int:
    """Send again what waits too long (the broker may have lost it) and what a dead worker left. Returns how many."""
    now = now or timezone.now()
    lost = Q(state=JobState.QUEUED, sent_at__lt=now - timedelta(seconds=RESEND_S))
    left = Q(state=JobState.RUNNING, beat_at__lt=now - timedelta(seconds=SILENT_S))
    n = 0
    for job_id in rows.filter(lost | left).values_list("id", flat=True)[:100]:
        rows.filter(pk=job_id).update(sent_at=now)
        queue_task(task, job_id)
        n += 1
    return n


def sweep_folders(rows: QuerySet[J], *, kind: str, kept: JobState | None = None) -> int:
    """Remove what ended jobs left when their worker was killed at the last moment; `kept` is the state that has files.

    A folder without a row is a job that is just being made.
    """
    ids = list_folders(kind)
    ended = rows.filter(pk__in=ids).exclude(state__in=[JobState.QUEUED, JobState.RUNNING, *([kept] if kept else [])])
    left = list(ended.values_list("id", flat=True))
    for job_id in left:
        remove_folder(job_id, kind=kind)
    return len(left)


def _kind_of(job: Transfer) -> str:
    return "export" if isinstance(job, Export) else "import"


class Beat:
    """Tells now and then, while something takes long, that the worker is alive."""

    def __init__(self, job: Transfer) -> None:
        self._job = job
        self._at = monotonic()

    def tick(self) -> None:
        """Raises LostJob when the worker has the job no more."""
        if monotonic() - self._at < BEAT_S:
            return
        self._at = monotonic()
        if not _own_row(self._job).update(beat_at=timezone.now()):
            raise LostJob(self._job.pk)
