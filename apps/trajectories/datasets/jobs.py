"""How exports and imports live as jobs: claimed by one worker, alive by a beat, left behind by a killed one.

Knows nothing of what a job does.
"""

from datetime import datetime, timedelta
from time import monotonic
from typing import Any, TypeVar
from uuid import uuid4

from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.trajectories.datasets.models import Export, Import, JobState
from apps.trajectories.datasets.storage import list_folders, remove_folder

SILENT_S = 60.0
BEAT_S = 5.0
SLICE_S = 20.0  # of one worker's time; then others have their turn
RESEND_S = 120.0

J = TypeVar("J", Export, Import)


class LostJob(Exception):
    """Another worker has the job, or somebody cancelled it: this one stops without a word."""


def claim_job(rows: QuerySet[J], job_id: str) -> str:
    """Take a job that waits or whose worker fell silent; returns the name of the claim, "" when it is not to be had."""
    now, claim = timezone.now(), uuid4().hex
    silent = Q(state=JobState.RUNNING, beat_at__lt=now - timedelta(seconds=SILENT_S))
    free = rows.filter(Q(state=JobState.QUEUED) | silent, pk=job_id)
    taken = free.update(state=JobState.RUNNING, claim=claim, beat_at=now)
    if taken:
        rows.filter(pk=job_id, started_at=None).update(started_at=now)
    return claim if taken else ""


def advance_job(rows: QuerySet[J], job: J, **changes: object) -> None:
    """Store progress as the worker that has the claim. Raises LostJob when it has it no more."""
    mine = rows.filter(pk=job.pk, claim=job.claim, state=JobState.RUNNING)
    if not mine.update(beat_at=timezone.now(), **changes):
        raise LostJob(job.pk)
    publish_news(job.project_id, kind=_kind_of(job), object_id=job.pk)
    job.refresh_from_db()


def pause_job(rows: QuerySet[J], job: J, task: str) -> None:
    """Let others have the worker: the job goes back into its queue and on from there."""
    advance_job(rows, job, state=JobState.QUEUED, sent_at=timezone.now())
    queue_task(task, job.pk)


def end_job(rows: QuerySet[J], job: J, state: JobState, *, error: str = "", **changes: object) -> None:
    """Store how a job ended, as the worker that has the claim. Raises LostJob when it has it no more."""
    advance_job(rows, job, state=state, error=error, ended_at=timezone.now(), **changes)


def cancel_job(rows: QuerySet[J], job: J) -> bool:
    """End a job that has not ended; its worker hears of it at its next step. False when it had ended."""
    open_states = [JobState.QUEUED, JobState.RUNNING]
    changed = rows.filter(pk=job.pk, state__in=open_states).update(state=JobState.CANCELLED, ended_at=timezone.now())
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


def _kind_of(job: Export | Import) -> str:
    return "export" if isinstance(job, Export) else "import"


class Beat:
    """Tells now and then, while something takes long, that the worker is alive."""

    def __init__(self, rows: QuerySet[J], job: J) -> None:
        self._rows: QuerySet[Any] = rows.filter(pk=job.pk, claim=job.claim, state=JobState.RUNNING)
        self._at = monotonic()

    def tick(self) -> None:
        """Raises LostJob when the worker has the job no more."""
        if monotonic() - self._at < BEAT_S:
            return
        self._at = monotonic()
        if not self._rows.update(beat_at=timezone.now()):
            raise LostJob
