"""Does the work of jobs, a piece in each transaction: whoever dies in between loses nothing, and the next goes on.

Two workers at one job take turns: a piece holds the job's row. Knows actions by their table alone.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from time import monotonic

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.core.contracts.tasks import RUN_BULK_JOB
from apps.core.errors import ServiceError
from apps.core.jobs import queue_task
from apps.core.live import publish_many, publish_news
from apps.trajectories.blindness import find_hidden
from apps.trajectories.bulk.actions import Action, Outcome, Outcomes, caller_of
from apps.trajectories.bulk.models import BulkChange, BulkJob, JobState
from apps.trajectories.bulk.services import UNDO_FOR
from apps.trajectories.datasets.jobs import SLICE_S
from apps.trajectories.models import Exchange, Trajectory
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching

log = structlog.get_logger(__name__)

PIECE = 100
SILENT = timedelta(seconds=60)
PURGE_AT_ONCE = 200
GONE = "there is no such trajectory in this project (any more)"


def run_job(job_id: str, *, actions: Mapping[str, Action], slice_s: float = SLICE_S) -> None:
    """Work on a job until it is done or taken back, or for about `slice_s` seconds: then it waits for its next turn.
    Doing it twice is fine."""
    ends = monotonic() + slice_s
    while _do_piece(job_id, actions=actions):
        if monotonic() > ends:
            queue_task(RUN_BULK_JOB, job_id)
            return


@transaction.atomic
def _do_piece(job_id: str, *, actions: Mapping[str, Action]) -> bool:
    """Do one piece; False when nothing is left to do."""
    job = BulkJob.objects.select_for_update().filter(pk=job_id).first()
    if job is None or not job.is_under_way:
        return False
    job = BulkJob.objects.select_related("project__team", "author", "key__agent").get(pk=job_id)
    action = actions[job.action]
    is_more = _undo_piece(job, action) if job.state == JobState.UNDOING else _apply_piece(job, action)
    publish_news(job.project_id, kind="job", object_id=job.pk)
    return is_more


def _apply_piece(job: BulkJob, action: Action) -> bool:
    if job.state == JobState.QUEUED:
        job.state, job.n_total = JobState.RUNNING, len(job.ids) or _matching(job).count()
    ids = _next_ids(job)
    rows = Trajectory.objects.of_project(job.project).filter(pk__in=ids).order_by("pk")
    locked = list(rows.select_for_update(of=("self",)))
    outcomes: Outcomes = {pk: Outcome(error=GONE) for pk in ids}
    outcomes |= _apply(action, job, locked)
    BulkChange.objects.bulk_create(
        BulkChange(job=job, trajectory_id=pk, before=outcome.before, error=outcome.error)
        for pk, outcome in outcomes.items()
        if outcome.error or outcome.before is not None
    )
    n_failed = sum(bool(outcome.error) for outcome in outcomes.values())
    job.n_failed += n_failed
    job.n_done += len(outcomes) - n_failed
    if action.undo is not None:
        job.n_changed = (job.n_changed or 0) + sum(outcome.before is not None for outcome in outcomes.values())
    job.touched_at = timezone.now()
    if ids:
        job.cursor = ids[-1]
    if len(ids) < PIECE:
        job.state, job.ended_at = JobState.DONE, job.touched_at
    job.save()
    publish_many({row.pk: job.project_id for row in locked}, kind="trajectory")
    return job.state == JobState.RUNNING


def _apply(action: Action, job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    try:
        with transaction.atomic():
            return action.apply(job, rows)
    except ServiceError as error:  # what the job was to work with is gone
        return {row.pk: Outcome(error=error.message) for row in rows}


def _next_ids(job: BulkJob) -> list[str]:
    """Return the following ids, newest first. What the job has changed may match no more, but the cursor is past it."""
    if job.ids:
        return [pk for pk in job.ids if not job.cursor or pk < job.cursor][:PIECE]
    rows = _matching(job)
    rows = rows.filter(pk__lt=job.cursor) if job.cursor else rows
    return list(rows.order_by("-pk").values_list("pk", flat=True)[:PIECE])


def _matching(job: BulkJob) -> TrajectoryQuerySet:
    hidden = find_hidden(caller_of(job))
    rows = find_matching(project=job.project, query=parse_query(job.query), now=job.asked_at, hidden=hidden)
    return rows.filter(pk__lte=job.upto)


def _undo_piece(job: BulkJob, action: Action) -> bool:
    waiting = BulkChange.objects.filter(job=job, is_undone=False, error="", before__isnull=False)
    changes = list(waiting.order_by("pk")[:PIECE])
    if changes:
        before = {change.trajectory_id: change.before for change in changes}
        list(Trajectory.objects.select_for_update().filter(pk__in=before).order_by("pk").values_list("pk"))
        if action.undo is not None:
            action.undo(job, before)
        BulkChange.objects.filter(pk__in=[change.pk for change in changes]).update(is_undone=True)
        BulkJob.objects.filter(pk=job.pk).update(n_undone=F("n_undone") + len(changes), touched_at=timezone.now())
        publish_many(dict.fromkeys(before, job.project_id), kind="trajectory")
        return True
    BulkJob.objects.filter(pk=job.pk).update(state=JobState.UNDONE, ended_at=timezone.now())
    return False


def resend_jobs() -> None:
    """Queue again the jobs that no worker has touched for a while."""
    under_way = [JobState.QUEUED, JobState.RUNNING, JobState.UNDOING]
    silent = BulkJob.objects.filter(state__in=under_way, touched_at__lt=timezone.now() - SILENT)
    for job_id in silent.values_list("pk", flat=True)[:100]:
        log.warning("bulk.resent", job=job_id)
        queue_task(RUN_BULK_JOB, job_id)


def purge_deleted() -> int:
    """Remove for good, with their raw calls, trajectories whose deletion nobody can undo any more; returns how many.

    What a snapshot says of them stays: it names them and holds no words.
    """
    long_ago = timezone.now() - UNDO_FOR
    rows = list(Trajectory.objects.filter(deleted_at__lt=long_ago).order_by("deleted_at")[:PURGE_AT_ONCE])
    for trajectory in rows:
        calls = list(trajectory.steps.values_list("exchange_id", flat=True))
        with transaction.atomic():
            trajectory.delete()
            Exchange.objects.filter(pk__in=calls).delete_with_stems()
    BulkChange.objects.filter(job__created_at__lt=long_ago, error="").delete()
    return len(rows)
