"""Calls that are in no trajectory, or beside a conversation: why, and their way in or out by hand.

Four kinds: set aside (the recorder could not read them), unassigned (nothing says to which conversation they belong),
side calls (in a trajectory, but kept out of training), and those that a person has moved in, until they are moved back
(`taking_out.py`). Moving a call in is the recorder's work: it is put back with
the trajectory's name on it. Knows no HTTP.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from django.db import transaction
from django.db.models import Q, TextChoices

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Agent, Project, Role
from apps.accounts.services import record_event
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.core.paging import Page, page_newest_first
from apps.trajectories.assigned import AssignedCall
from apps.trajectories.calls import GENERATE
from apps.trajectories.models import Exchange, SideCall, Step, Trajectory
from apps.trajectories.recorder import fold_agent
from apps.trajectories.services import find_trajectory
from apps.trajectories.side_calls import recognise_words
from apps.trajectories.trie import load_context
from apps.trajectories.unassigned import UnassignedCall


class Kind(TextChoices):
    SET_ASIDE = "set_aside", "Set aside"
    UNASSIGNED = "unassigned", "Unassigned"
    SIDE = "side", "Side calls"
    MOVED_IN = "moved_in", "Moved in"


@dataclass(frozen=True, kw_only=True)
class Item:
    """One call in the inbox. `trajectory_id` is that of a side call or of one that was moved in, `step_id` that of a
    side call, else ""."""

    id: str
    kind: Kind
    agent: str
    dialect: str
    status: str
    why: str
    at: datetime
    trajectory_id: str = ""
    step_id: str = ""
    index: int | None = None  # of the step
    title: str = ""


def list_inbox(*, project: Project, kind: str, before: str | None = None, limit: int = 50) -> Page[Item]:
    """Return one page of the project's calls of this kind."""
    if kind not in Kind.values:
        raise InvalidInput(f"kind is one of {', '.join(Kind.values)}", field="kind")
    return _LISTS[Kind(kind)](project, before, limit)


def _list_set_aside(project: Project, before: str | None, limit: int) -> Page[Item]:
    rows = Exchange.objects.set_aside().filter(project_id=project.pk)
    page = page_newest_first(rows.only(*_SHORT), before=before, limit=limit)
    names = _agent_names(project)
    items = [_make_item(row, Kind.SET_ASIDE, names, why=row.fold_error) for row in page.items]
    return Page(items=items, next_before=page.next_before)


def _list_unassigned(project: Project, before: str | None, limit: int) -> Page[Item]:
    page = page_newest_first(UnassignedCall.objects.filter(project_id=project.pk), before=before, limit=limit)
    ids = [row.pk for row in page.items]
    calls = Exchange.objects.filter(pk__in=ids, project_id=project.pk).only(*_SHORT).order_by("-pk")
    names = _agent_names(project)
    items = [_make_item(row, Kind.UNASSIGNED, names, why=_explain_unassigned(row)) for row in calls]
    return Page(items=items, next_before=page.next_before)


def _list_side_calls(project: Project, before: str | None, limit: int) -> Page[Item]:
    rows = Step.objects.filter(
        ~Q(side_call=SideCall.NONE), trajectory__project=project, trajectory__deleted_at=None
    ).select_related("trajectory__agent")
    narrow = rows.only(
        "index", "side_call", "status", "started_at", "exchange_id", "trajectory__title", "trajectory__agent__name"
    )
    page = page_newest_first(narrow, before=before, limit=limit)
    items = [
        Item(
            id=step.exchange_id,
            kind=Kind.SIDE,
            agent=step.trajectory.agent.name,
            dialect="",
            status=step.status,
            why=step.get_side_call_display(),
            at=step.started_at,
            trajectory_id=step.trajectory_id,
            step_id=step.pk,
            index=step.index,
            title=step.trajectory.title,
        )
        for step in page.items
    ]
    return Page(items=items, next_before=page.next_before)


def _list_moved_in(project: Project, before: str | None, limit: int) -> Page[Item]:
    rows = AssignedCall.objects.filter(project_id=project.pk, trajectory__deleted_at=None).select_related("trajectory")
    page = page_newest_first(rows, before=before, limit=limit)
    calls = Exchange.objects.only(*_SHORT).in_bulk([row.pk for row in page.items])
    names = _agent_names(project)
    items = []
    for row in page.items:
        if row.pk in calls:
            why = f"{row.assigned_by} moved it into a trajectory"
            item = _make_item(calls[row.pk], Kind.MOVED_IN, names, why=why)
            items.append(replace(item, trajectory_id=row.trajectory_id, title=row.trajectory.title))
    return Page(items=items, next_before=page.next_before)


_SHORT = ("id", "agent_id", "dialect", "status", "error", "fold_error", "started_at")
_LISTS: dict[Kind, Callable[[Project, str | None, int], Page[Item]]] = {
    Kind.SET_ASIDE: _list_set_aside,
    Kind.UNASSIGNED: _list_unassigned,
    Kind.SIDE: _list_side_calls,
    Kind.MOVED_IN: _list_moved_in,
}


def _agent_names(project: Project) -> dict[str, str]:
    return dict(Agent.objects.filter(project=project).values_list("pk", "name"))


def _make_item(row: Exchange, kind: Kind, names: dict[str, str], *, why: str) -> Item:
    agent = names.get(row.agent_id, "an agent that is gone")
    return Item(id=row.pk, kind=kind, agent=agent, dialect=row.dialect, status=row.status, why=why, at=row.started_at)


def _explain_unassigned(row: Exchange) -> str:
    if row.dialect == GENERATE:
        return "a call in tokens that names no trajectory: its maker has not submitted it as a step"
    if row.error:
        return f"it failed before any conversation began: {row.error}"
    return "it failed before any conversation began, and nothing in it names one"


def find_call(*, caller: Caller, exchange_id: str, role: Role = Role.VIEWER) -> Exchange:
    """Return a call that waits in the inbox, if the caller has `role` in its project."""
    call = Exchange.objects.filter(pk=exchange_id).first() if is_id(exchange_id, "exch") else None
    project = Project.objects.filter(pk=call.project_id).first() if call else None
    if call is None or project is None or caller.role_in(project) is None:
        raise NotFound(f"there is no call {exchange_id!r}")
    require_role(caller, project, role)
    if not call.fold_error and not UnassignedCall.objects.filter(pk=call.pk).exists():
        raise Conflict("this call waits in no inbox: it is in a trajectory, or the recorder has still to look at it")
    return call


def retry_call(*, caller: Caller, exchange_id: str) -> None:
    """Put a call back to the recorder, which looks at it once more."""
    call = find_call(caller=caller, exchange_id=exchange_id, role=Role.REVIEWER)
    _put_back(call, caller, action="call.put_back", trajectory_id=call.trajectory_id)


def assign_call(*, caller: Caller, exchange_id: str, trajectory_id: str) -> Trajectory:
    """Move a call into a trajectory of its agent; it becomes the last step there. `take_out_call` undoes it.

    Raises InvalidInput for another agent's trajectory, and Conflict (the call waits on) when it cannot be read.
    """
    call = find_call(caller=caller, exchange_id=exchange_id, role=Role.REVIEWER)
    trajectory = find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
    if (trajectory.project_id, trajectory.agent_id) != (call.project_id, call.agent_id):
        fault = "that trajectory is another agent's: choose one of the agent that made the call"
        raise InvalidInput(fault, field="trajectory")
    _put_back(call, caller, action="call.assigned", trajectory_id=trajectory.pk, into=trajectory)
    call.refresh_from_db()
    if call.fold_error:
        AssignedCall.objects.filter(pk=call.pk).delete()
        raise Conflict(f"the call cannot be put there: {call.fold_error}")
    trajectory.refresh_from_db()
    return trajectory


def _put_back(
    call: Exchange, caller: Caller, *, action: str, trajectory_id: str, into: Trajectory | None = None
) -> None:
    project = Project.objects.select_related("team").get(pk=call.project_id)
    with transaction.atomic():
        waiting = Exchange.objects.filter(pk=call.pk).exclude(folded_at=None)
        if waiting.update(folded_at=None, fold_error="", trajectory_id=trajectory_id) != 1:
            raise Conflict("somebody else is putting this call back already")
        n_waiting, _ = UnassignedCall.objects.filter(pk=call.pk).delete()
        if into is not None:
            _keep_as_it_was(call, caller, trajectory_id=into.pk, was_unassigned=bool(n_waiting))
        record_event(team=project.team, actor=caller.name, action=action, object_id=call.pk)
    fold_agent(call.agent_id)
    publish_news(call.project_id, kind="inbox", object_id=call.pk)


def _keep_as_it_was(call: Exchange, caller: Caller, *, trajectory_id: str, was_unassigned: bool) -> None:
    """Note what an undo needs, before the recorder changes it."""
    before = Trajectory.objects.select_for_update().get(pk=trajectory_id)
    AssignedCall.objects.create(
        exchange_id=call.pk,
        project_id=call.project_id,
        trajectory=before,
        assigned_by=caller.name,
        named_trajectory_id=call.trajectory_id,
        was_unassigned=was_unassigned,
        fold_error=call.fold_error,
        title=before.title,
        has_error=before.has_error,
        last_step_at=before.last_step_at,
    )


def _name_side_call(step: Step) -> SideCall:
    """Return the kind that its words tell, so that what was moved in is again what it was when it is moved out."""
    *messages, _answer = load_context(step.pk).messages
    return recognise_words(messages) or SideCall.OTHER


@transaction.atomic
def set_side_call(*, caller: Caller, trajectory: Trajectory, step: Step, is_side: bool) -> Step:
    """Take a step out of the conversation as a side call, or into it. Saying the same twice is fine."""
    require_role(caller, trajectory.project, Role.REVIEWER)
    rows = Step.objects.filter(pk=step.pk)
    if is_side:
        changed = rows.filter(side_call=SideCall.NONE).update(side_call=_name_side_call(step))
    else:
        changed = rows.exclude(side_call=SideCall.NONE).update(side_call=SideCall.NONE)
    if changed:
        action = "step.moved_out" if is_side else "step.moved_in"
        record_event(team=trajectory.project.team, actor=caller.name, action=action, object_id=step.pk)
        publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    step.refresh_from_db()
    return step
