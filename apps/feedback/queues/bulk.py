"""Putting many trajectories into a review queue: an action of bulk jobs, and its way back."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from apps.accounts.models import Project, Role
from apps.core.errors import InvalidInput, NotFound
from apps.core.texts import is_storable
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import QueueItem, QueueState, ReviewQueue
from apps.trajectories.bulk.actions import Action, Outcome, Outcomes, Settings, caller_of, take_only
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.models import Trajectory


def _check(project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "queue")
    if not settings.get("queue"):
        raise InvalidInput("say which review queue; a new one is made under Review", field="queue")
    found = _find(project.pk, str(settings["queue"]))
    if found.state == QueueState.ARCHIVED:
        raise InvalidInput("this queue is archived: choose another one", field="queue")
    return {"queue": found.pk}


def _find(project_id: str, queue_id: str) -> ReviewQueue:
    known = ReviewQueue.objects.select_related("project__team").filter(project=project_id)
    found = known.filter(pk=queue_id).first() if is_storable(queue_id) else None
    if found is None:
        raise NotFound(f"this project has no review queue {queue_id!r}", field="queue")
    return found


def _add(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    queue = _find(job.project_id, job.settings["queue"])
    ids = [row.pk for row in rows]
    known = _present(queue, ids)
    add_trajectories(caller=caller_of(job), queue=queue, ids=ids)
    now = _present(queue, ids)
    outcomes = {}
    for pk in ids:
        if pk in now:
            outcomes[pk] = Outcome(before=None if pk in known else False)
        else:
            outcomes[pk] = Outcome(error="no other try at its task stands beside it, so it makes no pair")
    return outcomes


def _present(queue: ReviewQueue, ids: Sequence[str]) -> set[str]:
    rows = QueueItem.objects.filter(queue=queue).filter(Q(trajectory__in=ids) | Q(other__in=ids))
    return {pk for pair in rows.values_list("trajectory_id", "other_id") for pk in pair if pk in ids}


def _take_out(job: BulkJob, before: Mapping[str, Any]) -> None:
    """Take out what nobody has begun to review; reviews that were given stay, and their items with them."""
    untouched = QueueItem.objects.filter(queue=job.settings["queue"], trajectory__in=list(before), reviews=None)
    untouched.delete()


QUEUE = Action(
    name="queue",
    words="add to a review queue",
    done="added to a review queue",
    does="Add {rows} to the review queue “{queue}”",
    role=Role.REVIEWER,
    check=_check,
    apply=_add,
    undo=_take_out,
)
