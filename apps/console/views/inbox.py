"""The inbox for people: calls that are in no trajectory or beside a conversation, why, and what one can do about it."""

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import steps
from apps.console.queries import trajectories as queries
from apps.console.snippets import curl
from apps.core.errors import NotFound
from apps.trajectories import inbox as service
from apps.trajectories.models import Exchange
from apps.trajectories.taking_out import find_assigned, take_out_call

HINTS = {
    "set_aside": "The recorder could not read these. They are kept as they came; put them back when the cause is gone.",
    "unassigned": "Nothing in these says to which conversation they belong. Give them a trajectory of their agent.",
    "moved_in": "People have put these into a trajectory. Each can be moved back while nothing there relies on it.",
    "side": "Calls beside a conversation: titles, compactions, heartbeats. They are kept and not trained on.",
}


@project_page()
def inbox(page: Page) -> HttpResponse:
    """One kind of calls, newest first."""
    kind = page.request.GET.get("kind", service.Kind.SET_ASIDE)
    found = service.list_inbox(project=page.project, kind=kind, before=page.request.GET.get("before") or None)
    return page.render(
        "console/inbox.html",
        found=found,
        kind=kind,
        kinds=service.Kind.choices,
        hint=HINTS[kind],
        curl=curl("GET", f"/api/v1/inbox?kind={kind}"),
    )


@project_page()
def raw_call(page: Page, exchange_id: str) -> HttpResponse:
    """What was sent and what came back, for a call of the inbox."""
    call = _find_call(page, exchange_id)
    return page.render("console/call.html", call=call, raw=steps.read_raw_call(call))


@project_page("POST", role=Role.REVIEWER)
def retry(page: Page, exchange_id: str) -> HttpResponse:
    """Put a call back to the recorder."""
    _find_call(page, exchange_id)
    service.retry_call(caller=page.caller, exchange_id=exchange_id)
    return page.done("Put back to the recorder; if it comes here again, its reason says why", to=_list_address(page))


@project_page("POST", role=Role.REVIEWER)
def assign(page: Page, exchange_id: str) -> HttpResponse:
    """Move a call into a trajectory."""
    _find_call(page, exchange_id)
    trajectory_id = page.request.POST.get("trajectory", "").strip()
    trajectory = service.assign_call(caller=page.caller, exchange_id=exchange_id, trajectory_id=trajectory_id)
    undo = page.url("take_out_call", exchange_id)
    return page.done("Moved here", to=page.url("trajectory", trajectory.pk), undo=undo)


@project_page("POST", role=Role.REVIEWER)
def take_out(page: Page, exchange_id: str) -> HttpResponse:
    """Put a call that was moved in by hand back into the inbox."""
    assigned = find_assigned(caller=page.caller, exchange_id=exchange_id)
    if assigned.project_id != page.project.pk:
        raise NotFound("this project has no such call")
    take_out_call(caller=page.caller, exchange_id=exchange_id)
    kind = service.Kind.UNASSIGNED if assigned.was_unassigned else service.Kind.SET_ASIDE
    return page.done("Back in the inbox", to=f"{page.url('inbox')}?kind={kind}")


@project_page("POST", role=Role.REVIEWER)
def side_call(page: Page, trajectory_id: str, step_id: str) -> HttpResponse:
    """Move a step out of the conversation as a side call, or into it."""
    trajectory = queries.find_trajectory(page.project, trajectory_id)
    step = steps.find_step(trajectory, step_id)
    is_side = page.request.POST.get("side") == "1"
    service.set_side_call(caller=page.caller, trajectory=trajectory, step=step, is_side=is_side)
    message = "Moved out of the conversation" if is_side else "Moved into the conversation"
    address = page.url("trajectory", trajectory.pk) + f"?step={step.index}#step-{step.index}"
    return page.done(message, to=address)


def _find_call(page: Page, exchange_id: str) -> Exchange:
    call = service.find_call(caller=page.caller, exchange_id=exchange_id)
    if call.project_id != page.project.pk:
        raise NotFound("this project has no such call")
    return call


def _list_address(page: Page) -> str:
    kept: dict[str, Any] = {"kind": page.request.POST.get("kind", "")}
    return page.url("inbox") + (f"?{urlencode(kept)}" if kept["kind"] in service.Kind.values else "")
