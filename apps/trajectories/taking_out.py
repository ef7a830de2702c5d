"""The undo of moving a call into a trajectory by hand: its steps go, and it waits in the inbox as it did before.

Steps that others rely on by now stay: what came after them, what was said of them, snapshots that hold them. A failed
call whose retry the call was stays out of training. Knows no HTTP.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import ForeignObjectRel
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.errors import Conflict, NotFound
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.trajectories.assigned import AssignedCall
from apps.trajectories.datasets.models import SnapshotEntry
from apps.trajectories.models import Exchange, Opening, Step, Trajectory
from apps.trajectories.recorder import lock_agent
from apps.trajectories.search.models import TrajectoryVersion
from apps.trajectories.search.words import keep_words
from apps.trajectories.unassigned import keep_unassigned

WAIT_S = 2.0
_INSTEAD = "move its step out of the conversation there instead"
_CHUNK = 200


def find_assigned(*, caller: Caller, exchange_id: str) -> AssignedCall:
    """Return what is known of a call that was moved in by hand, for reviewers. Another team's looks missing."""
    known = AssignedCall.objects.select_related("trajectory__project__team")
    assigned = known.filter(pk=exchange_id).first() if is_id(exchange_id, "exch") else None
    if assigned is None or caller.role_in(assigned.trajectory.project) is None:
        raise NotFound(f"nobody has moved a call {exchange_id!r} into a trajectory, or it is back in the inbox already")
    require_role(caller, assigned.trajectory.project, Role.REVIEWER)
    return assigned


@transaction.atomic
def take_out_call(*, caller: Caller, exchange_id: str) -> None:
    """Put a call that was moved into a trajectory by hand back into the inbox.

    Raises Conflict when something relies on its steps by now, and when somebody else was faster.
    """
    project = find_assigned(caller=caller, exchange_id=exchange_id).trajectory.project
    call = Exchange.objects.get(pk=exchange_id)
    if not lock_agent(call.agent_id, wait_s=WAIT_S):
        raise Conflict("the recorder is at work on this agent's calls: try again in a moment")
    assigned = AssignedCall.objects.select_for_update().filter(pk=exchange_id).first()
    call.refresh_from_db()
    if assigned is None:
        raise Conflict("somebody else has taken this call out already")
    if call.folded_at is None:
        raise Conflict("the recorder has still to look at this call: try again in a moment")
    trajectory = Trajectory.objects.select_for_update().get(pk=assigned.trajectory_id)
    steps = list(Step.objects.filter(trajectory=trajectory, exchange_id=call.pk).order_by("index"))
    if steps:
        _check_loose(trajectory, steps)
        _remove(trajectory, steps)
    _restore_sums(trajectory, assigned, call, steps)
    _put_back(call, assigned)
    _record(project, caller, call, trajectory)


def _check_loose(trajectory: Trajectory, steps: Sequence[Step]) -> None:
    """Raise Conflict when something relies on the steps."""
    first, last = steps[0].index, steps[-1].index
    if Step.objects.filter(trajectory=trajectory, index__gt=last).exists():
        raise Conflict(f"calls came after this one in its trajectory: {_INSTEAD}")
    if any(_has_rows(relation, steps) for relation in Step._meta.get_fields(include_hidden=True)):  # noqa: SLF001
        raise Conflict(f"something was said of this call, and that stays: {_INSTEAD}")
    if SnapshotEntry.objects.filter(trajectory_id=trajectory.pk, end_index__gt=first).exists():
        raise Conflict(f"a snapshot holds this call: {_INSTEAD}")


def _has_rows(relation: Any, steps: Sequence[Step]) -> bool:
    """Say whether another table's rows name the steps by this relation; tables of rooms above, too."""
    if not isinstance(relation, ForeignObjectRel):
        return False
    rows = relation.related_model._base_manager.filter(**{f"{relation.field.name}__in": steps})  # noqa: SLF001
    return bool(rows.exists())


def _remove(trajectory: Trajectory, steps: Sequence[Step]) -> None:
    ids = [step.pk for step in steps]
    Opening.objects.filter(example_id__in=ids, token_ids=b"").update(example_id="")
    Step.objects.filter(trajectory=trajectory, pk__in=ids).delete()
    trajectory.texts.all().delete()
    TrajectoryVersion.objects.filter(trajectory=trajectory).delete()
    left: list[Step] = []
    for step in Step.objects.filter(trajectory=trajectory).order_by("index").iterator(chunk_size=_CHUNK):
        left.append(step)
        if len(left) == _CHUNK:
            keep_words(left)
            left = []
    keep_words(left)


def _restore_sums(trajectory: Trajectory, assigned: AssignedCall, call: Exchange, steps: Sequence[Step]) -> None:
    """Count the steps out. How the trajectory looked is as before, unless another call has come to it since."""
    trajectory.n_steps -= len(steps)
    trajectory.n_prompt_tokens -= steps[0].n_prompt_tokens if steps else 0  # choices share it
    trajectory.n_completion_tokens -= sum(step.n_completion_tokens for step in steps)
    if trajectory.last_step_at == max(assigned.last_step_at, call.ended_at):
        for name in ("title", "has_error", "last_step_at"):
            setattr(trajectory, name, getattr(assigned, name))
    trajectory.save(
        update_fields=["n_steps", "n_prompt_tokens", "n_completion_tokens", "title", "has_error", "last_step_at"]
    )


def _put_back(call: Exchange, assigned: AssignedCall) -> None:
    Exchange.objects.filter(pk=call.pk).update(
        folded_at=timezone.now(),
        folded_choices=[],
        fold_error=assigned.fold_error,
        trajectory_id=assigned.named_trajectory_id,
    )
    if assigned.was_unassigned:
        keep_unassigned([call])
    assigned.delete()


def _record(project: Project, caller: Caller, call: Exchange, trajectory: Trajectory) -> None:
    record_event(team=project.team, actor=caller.name, action="call.taken_out", object_id=call.pk)
    publish_news(project.pk, kind="inbox", object_id=call.pk)
    publish_news(project.pk, kind="trajectory", object_id=trajectory.pk)
