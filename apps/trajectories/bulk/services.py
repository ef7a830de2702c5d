"""Starting a job over many trajectories, finding it again, and taking it back. The work is `running.py`'s; no HTTP."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.tasks import RUN_BULK_JOB
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.trajectories.bulk.actions import Action
from apps.trajectories.bulk.models import BulkChange, BulkJob, JobState
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import parse_query

MAX_IDS = 5000
UNDO_FOR = timedelta(days=7)


@transaction.atomic
def start_job(
    *,
    caller: Caller,
    project: Project,
    action: Action,
    settings: Mapping[str, Any],
    ids: Sequence[str] = (),
    query: str | None = None,
) -> BulkJob:
    """Begin to change the trajectories in `ids`, or all that `query` finds now, in the background.

    Raises InvalidInput that names what is wrong, SearchError, Forbidden.
    """
    require_role(caller, project, action.role)
    if bool(ids) == (query is not None):
        raise InvalidInput("say which trajectories: either ids or q", field="ids")
    wanted = _check_ids(ids)
    newest = Trajectory.objects.filter(project=project).order_by("-pk").values_list("pk", flat=True).first()
    job = BulkJob.objects.create(
        project=project,
        author=caller.user,
        key=caller.key,
        action=action.name,
        settings=action.check(project, settings),
        ids=wanted,
        query=str(parse_query(query or "")),
        upto=newest or "",
    )
    record_event(team=project.team, actor=caller.name, action=f"bulk.{action.name}", object_id=job.pk)
    queue_task(RUN_BULK_JOB, job.pk)
    return job


def _check_ids(ids: Sequence[str]) -> list[str]:
    """Return the ids, newest first."""
    if len(ids) > MAX_IDS:
        raise InvalidInput(f"name at most {MAX_IDS} ids, or use q", field="ids")
    for trajectory_id in ids:
        if not is_id(trajectory_id, "traj"):
            raise InvalidInput(f"{trajectory_id[:40]!r} is no id of a trajectory", field="ids")
    return sorted(set(ids), reverse=True)


def find_job(*, caller: Caller, job_id: str) -> BulkJob:
    """Return the job if the caller may see its project."""
    known = BulkJob.objects.select_related("project__team", "author", "key")
    job = known.filter(pk=job_id).first() if is_id(job_id, "job") else None
    if job is None or caller.role_in(job.project) is None:
        raise NotFound(f"there is no job {job_id!r}")
    return job


def list_jobs(project: Project) -> QuerySet[BulkJob]:
    """Return the project's jobs, for paging."""
    return BulkJob.objects.filter(project=project).select_related("author", "key")


def list_failures(job: BulkJob) -> QuerySet[BulkChange]:
    """Return what the job could not change, for paging."""
    return BulkChange.objects.filter(job=job).exclude(error="")


@transaction.atomic
def undo_job(*, caller: Caller, job: BulkJob, action: Action) -> BulkJob:
    """Take back what the job did, or has done so far. Raises Conflict when it is taken back already or too old."""
    require_role(caller, job.project, action.role)
    if action.undo is None:
        raise Conflict(f"there is nothing to take back: the job only does this: {action.words}")
    if not can_undo(job, action):
        raise Conflict(f"the job is {job.state}: it can be taken back for {UNDO_FOR.days} days, once")
    before_undo = [JobState.QUEUED, JobState.RUNNING, JobState.DONE]
    now = timezone.now()
    if BulkJob.objects.filter(pk=job.pk, state__in=before_undo).update(state=JobState.UNDOING, touched_at=now) != 1:
        raise Conflict("somebody else is taking the job back already")
    record_event(team=job.project.team, actor=caller.name, action="bulk.undone", object_id=job.pk)
    queue_task(RUN_BULK_JOB, job.pk)
    publish_news(job.project_id, kind="job", object_id=job.pk)
    job.refresh_from_db()
    return job


def can_undo(job: BulkJob, action: Action) -> bool:
    """Say whether the job can still be taken back."""
    is_standing = job.state in {JobState.QUEUED, JobState.RUNNING, JobState.DONE}
    return action.undo is not None and is_standing and job.created_at > timezone.now() - UNDO_FOR


def may_undo(caller: Caller, job: BulkJob, action: Action) -> bool:
    """Say whether the caller's role is enough for it."""
    return (caller.role_in(job.project) or Role.VIEWER).includes(action.role)
