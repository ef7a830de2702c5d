"""One trajectory for people: its steps in several views, rewards, and whether it is trained on."""

from typing import Any

from django.conf import settings
from django.http import HttpResponse, JsonResponse

from apps.accounts.models import Role
from apps.console.forms import LabelForm
from apps.console.page import Page, project_page
from apps.console.queries import rewards, said, steps
from apps.console.queries import trajectories as queries
from apps.console.queries.step_map import draw_map
from apps.console.replies import with_toast
from apps.console.snippets import curl
from apps.console.templatetags.console import signed
from apps.console.transcript import decode_json
from apps.core.errors import InvalidInput
from apps.feedback.models import Source
from apps.feedback.services import add_label, take_back_label, undo_labels
from apps.trajectories.models import Trajectory
from apps.trajectories.services import complete_trajectory, set_exclusion

VIEWS = {"chat": "Chat", "plain": "Plain", "prompt": "Whole prompt", "tokens": "Tokens", "raw": "Raw"}
ALL_VIEWS = (*VIEWS, "whole", "entropy")  # the chat with its very long texts; the tokens in other colours
STEP_CONTEXT: dict[str, Any] = {"step_views": VIEWS.items()}


@project_page()
def trajectory(page: Page, trajectory_id: str) -> HttpResponse:
    """One trajectory: steps, rewards, lineage."""
    found = queries.find_trajectory(page.project, trajectory_id)
    first, focus = _read_place(page)
    window = steps.read_window(found, user=page.user, first=first)
    opened: dict[str, Any] = {}
    view = page.request.GET.get("view", "chat")
    if focus is not None and view in ALL_VIEWS and view != "chat":
        step = steps.find_step(found, str(focus))
        shown = steps.read_view(step, view)
        opened = {"open_step": step.id, "view": view, "open_card": shown.pop("card", None), **shown}
    return page.render(
        "console/trajectory.html",
        trajectory=found,
        window=window,
        step_map=draw_map([card.step for card in window.cards]),
        focus=focus,
        panel=rewards.read_panel(found, caller=page.caller, role=page.role, hidden=page.hidden),
        said_panel=said.read_panel(found, caller=page.caller, role=page.role, hidden=page.hidden),
        step_hints=said.read_hints(
            found, [card.step.id for card in window.cards], caller=page.caller, hidden=page.hidden
        ),
        lineage=steps.read_lineage(found),
        idle_close_s=settings.CLAW.idle_close_s,
        curl=curl("GET", f"/api/v1/trajectories/{found.id}"),
        label_curl=curl("POST", f"/api/v1/trajectories/{found.id}/labels", {"value": 1.0, "text": "why"}),
        **STEP_CONTEXT,
        **opened,
    )


def _read_place(page: Page) -> tuple[int, int | None]:
    """Return the index that the page starts at, and the step to show it for."""
    given = page.request.GET.get("step", "")
    focus = int(given) if given.isdecimal() and len(given) < 9 else None
    start = page.request.GET.get("from", "")
    if start.isdecimal() and len(start) < 9:
        return int(start), focus
    return (focus // steps.PER_PAGE * steps.PER_PAGE if focus else 0), focus


@project_page()
def step_view(page: Page, trajectory_id: str, step_id: str) -> HttpResponse:
    """The body of one step in another view (whole prompt, tokens, raw)."""
    found = queries.find_trajectory(page.project, trajectory_id)
    step = steps.find_step(found, step_id)
    view = page.request.GET.get("view", "chat")
    if view not in ALL_VIEWS:
        raise InvalidInput(f"view={view} is none of {', '.join(ALL_VIEWS)}", field="view")
    card = steps.read_cards([step], own={})[0]
    context: dict[str, Any] = {
        "trajectory": found,
        "card": card,
        "view": view,
        "open_step": step.id,
        **steps.read_view(step, view),
    }
    return page.render("console/parts/step_body.html", **context, **STEP_CONTEXT)


@project_page()
def step_image(page: Page, trajectory_id: str, step_id: str, place: int) -> HttpResponse:
    """A picture that stands in a message of a step."""
    step = steps.find_step(queries.find_trajectory(page.project, trajectory_id), step_id)
    media_type, data = steps.read_image(step, place)
    return HttpResponse(data, content_type=media_type, headers={"Cache-Control": "private, max-age=3600"})


@project_page()
def step_raw(page: Page, trajectory_id: str, step_id: str) -> HttpResponse:
    """The raw call behind a step, whole, as a file."""
    step = steps.find_step(queries.find_trajectory(page.project, trajectory_id), step_id)
    headers = {"Content-Disposition": f'attachment; filename="{step.id}.json"'}
    return JsonResponse(
        {name: decode_json(text.encode()) for name, text in steps.read_raw(step).items()}, headers=headers
    )


@project_page("POST", role=Role.REVIEWER)
def label(page: Page, trajectory_id: str) -> HttpResponse:
    """Reward the whole trajectory, or a step of it when `step` names one."""
    found = queries.find_trajectory(page.project, trajectory_id)
    form = LabelForm(page.request.POST)
    if not form.is_valid():
        raise InvalidInput(form.first_error, field="value")
    step = steps.find_step(found, form.cleaned_data["step"]) if form.cleaned_data["step"] else None
    before = found.reward
    added = add_label(
        caller=page.caller,
        trajectory=found,
        step=step,
        value=form.cleaned_data["value"],
        text=form.cleaned_data["text"],
        source=Source.HUMAN,
    )
    found.refresh_from_db(fields=["reward"])
    is_plain = found.pk in page.hidden or (step is None and found.reward == added.value)
    counted = "" if is_plain else f": {rewards.tell_what_counts(found.reward, before=before)}"
    what = f"Step {step.index}" if step else "Trajectory"
    return _after_label(
        page,
        trajectory_id,
        step_id=step.id if step else "",
        message=f"{what} rewarded {signed(added.value)}{counted}",
        undo=page.url("undo_label", added.id),
    )


@project_page("POST", role=Role.REVIEWER)
def take_back(page: Page, label_id: str, *, is_undo: bool = False) -> HttpResponse:
    """Take one's own label back, or undo it: what one had said before is said again."""
    standing = rewards.find_own_label(page.project, label_id, user=page.user)
    if is_undo:
        undo_labels(caller=page.caller, trajectory=standing.trajectory, ids=[standing.pk])
    else:
        take_back_label(caller=page.caller, label=standing)
    step_id = standing.step_id or ""
    return _after_label(
        page, standing.trajectory_id, step_id=step_id, message="Undone" if is_undo else "Reward taken back", undo=""
    )


def _after_label(page: Page, trajectory_id: str, *, step_id: str, message: str, undo: str) -> HttpResponse:
    """Show the new rewards: as fragments that replace the old ones, or as the page again."""
    if not page.is_htmx:
        return page.done(message, to=page.url("trajectory", trajectory_id))
    found = queries.find_trajectory(page.project, trajectory_id)
    panel = rewards.read_panel(found, caller=page.caller, role=page.role, hidden=page.hidden)
    context: dict[str, Any] = {"trajectory": found, "panel": panel}
    if step_id:
        step = steps.find_step(found, step_id)
        own = rewards.own_step_values(found, user=page.user)
        context["card"] = steps.read_cards([step], own=own)[0]
    response = page.render("console/parts/reward_reply.html", **context)
    if step_id:
        response["HX-Retarget"] = f"#foot-{step_id}"
    return with_toast(response, message, undo=undo)


@project_page("POST", role=Role.REVIEWER)
def complete(page: Page, trajectory_id: str) -> HttpResponse:
    """Say that nothing more comes, so that a run may train on it now. There is no way back."""
    complete_trajectory(trajectory=queries.find_trajectory(page.project, trajectory_id))
    return page.done("Complete: a run may train on it once it has a reward", to=page.url("trajectory", trajectory_id))


@project_page("POST", role=Role.REVIEWER)
def exclude(page: Page, trajectory_id: str) -> HttpResponse:
    """Keep a trajectory out of training, or let it in again."""
    found = queries.find_trajectory(page.project, trajectory_id)
    is_excluded = page.request.POST.get("excluded") == "1"
    set_exclusion(trajectory=found, is_excluded=is_excluded, actor=page.caller.name)
    message = "Kept out of training" if is_excluded else "Let into training again"
    if not page.is_htmx:
        return page.done(message, to=page.url("trajectory", trajectory_id))
    fresh: Trajectory = queries.find_trajectory(page.project, trajectory_id)
    return with_toast(page.render("console/parts/exclusion.html", trajectory=fresh), message)
