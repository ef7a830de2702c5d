"""Taking back all that a grader said: a job over the trajectories that it spoke of, with progress and one undo.

What was taken back is not graded again by itself; a new back-fill may. Knows no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.feedback.graders.models import TAKEN_BACK, UNDER_WAY, Backfill, Grader, Grading, GradingState
from apps.feedback.models import Label, LabelQuerySet
from apps.feedback.services import say_again, take_back_labels
from apps.trajectories.blindness import NOTHING, Hidden, find_hidden
from apps.trajectories.bulk.actions import Action, Outcome, Outcomes, Settings, caller_of, take_only
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.services import start_job
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import Filter, Query


def _check(project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "grader")
    if not settings.get("grader"):
        raise InvalidInput("say which grader", field="grader")
    found = _find(project.pk, str(settings["grader"]))
    if Backfill.objects.filter(version__grader=found, state__in=UNDER_WAY).exists():
        raise Conflict("a back-fill of it is under way: wait for it, or cancel it")
    return {"grader": found.pk}


def _find(project_id: str, grader_id: str) -> Grader:
    known = Grader.objects.filter(project=project_id)
    found = known.filter(pk=grader_id).first() if is_id(grader_id, "grdr") else None
    if found is None:
        raise NotFound(f"this project has no grader {grader_id!r}", field="grader")
    return found


def _take_back(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    caller = caller_of(job)
    standing = _said_by(job.settings["grader"], caller=caller, hidden=find_hidden(caller)).filter(trajectory__in=rows)
    by_trajectory: dict[str, list[str]] = {}
    for label_id, trajectory_id in standing.order_by("pk").values_list("pk", "trajectory_id"):
        by_trajectory.setdefault(trajectory_id, []).append(label_id)
    return {row.pk: _take_back_one(job, row, by_trajectory.get(row.pk, [])) for row in rows}


def _take_back_one(job: BulkJob, row: Trajectory, ids: Sequence[str]) -> Outcome:
    """Take labels back, and have nobody who is at work on the trajectory, or waits to be, say them again."""
    if not ids:
        return Outcome()
    take_back_labels(caller=caller_of(job), trajectory=row, ids=ids)
    gradings = Grading.objects.filter(version__grader=job.settings["grader"], trajectory=row)
    done = list(gradings.filter(state=GradingState.DONE).values_list("pk", flat=True))
    gradings.update(state=GradingState.SKIPPED, error=TAKEN_BACK, claimed_at=None, ended_at=timezone.now())
    return Outcome(before={"labels": list(ids), "gradings": done})


def _undo(_job: BulkJob, before: Mapping[str, Any]) -> None:
    """Have the grader say it again; where it has graded anew since, that is its last word."""
    for row in Trajectory.objects.filter(pk__in=before):
        say_again(trajectory=row, ids=before[row.pk]["labels"])
        taken_back = Grading.objects.filter(
            pk__in=before[row.pk]["gradings"], state=GradingState.SKIPPED, error=TAKEN_BACK
        )
        taken_back.update(state=GradingState.DONE, error="")


TAKE_BACK = Action(
    name="take-back",
    words="take back what a grader said",
    done="freed of what it said",
    does="Take back what the grader “{grader}” said of {rows}",
    role=Role.TRAINER,
    check=_check,
    apply=_take_back,
    undo=_undo,
)


def take_back_all(*, caller: Caller, grader: Grader) -> BulkJob:
    """Begin to take back all that the grader, any version of it, says. Rewards follow.

    Raises Conflict while it fills back, and where nothing that it said stands.
    """
    require_role(caller, grader.project, Role.TRAINER)
    if count_said(grader, caller=caller, hidden=find_hidden(caller)) == 0:
        raise Conflict(f"nothing that {grader.name} said stands")
    query = Query(terms=(Filter(field="grader", operator=":", values=(grader.name,)),))
    with transaction.atomic():
        Grader.objects.select_for_update().get(pk=grader.pk)  # a back-fill begins before this, or after
        return start_job(
            caller=caller, project=grader.project, action=TAKE_BACK, settings={"grader": grader.pk}, query=str(query)
        )


def count_said(grader: Grader, *, caller: Caller, hidden: Hidden = NOTHING) -> int:
    """Return how many trajectories the grader says something of that the caller may see now."""
    said = _said_by(grader.pk, caller=caller, hidden=hidden).filter(trajectory__deleted_at=None)
    return said.order_by().values("trajectory").distinct().count()


def _said_by(grader_id: str, *, caller: Caller, hidden: Hidden) -> LabelQuerySet:
    return Label.objects.standing().filter(grader__grader=grader_id).seen_by(caller, hidden=hidden)
