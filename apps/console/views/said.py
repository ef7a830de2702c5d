"""Saying more of a trajectory than a reward: any field of the score schema, of the whole, a step, or some of its words;
what a step should have said; and taking back.
"""

from collections.abc import Sequence

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import comparing, rewards, said, steps
from apps.console.queries import trajectories as queries
from apps.console.replies import with_toast
from apps.console.review_form import read_answers
from apps.console.snippets import curl
from apps.console.transcript import decode_json
from apps.core.errors import InvalidInput, ServiceError
from apps.feedback.preferences.services import (
    add_comparison,
    add_correction,
    find_preference,
    take_back_preference,
    undo_preference,
)
from apps.feedback.preferences.sides import Side
from apps.feedback.services import Answer, add_labels, take_back_label, undo_labels
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Trajectory

PREFERRED = {"left": "the left one is better", "right": "the right one is better", "tie": "they are as good"}


@project_page("POST", role=Role.REVIEWER)
def say(page: Page, trajectory_id: str) -> HttpResponse:
    """Say what the form says: all filled-in fields, of the target that it names."""
    found = queries.find_trajectory(page.project, trajectory_id)
    form = page.request.POST
    step = steps.find_step(found, form["step"]) if form.get("step") else None
    words = form.get("words", "").replace("\r\n", "\n")
    place = form.get("place", "")
    span = None
    if words:
        if step is None:
            raise InvalidInput("which step says these words? Choose it", field="step")
        span = said.find_span(step, words, place=int(place) if place.isdecimal() and len(place) < 6 else 0)
    given = read_answers(form)
    if not given:
        raise InvalidInput("say something: nothing is filled in yet", field="answers")
    answers = [
        Answer(field=name, value=one["value"], text=one["text"], step=step, span=span) for name, one in given.items()
    ]
    labels = add_labels(caller=page.caller, trajectory=found, answers=answers)
    undo = page.url("undo_said", labels[0].pk) if len(labels) == 1 else ""
    message = f"Said: {said.name_fields(page.project, given)}"
    return _show_again(page, trajectory_id, step_id=step.pk if step else "", message=message, undo=undo)


@project_page("POST", role=Role.REVIEWER)
def unsay(page: Page, label_id: str, *, is_undo: bool = False) -> HttpResponse:
    """Take a label back, or undo it: what its author had said before is said again. A stale one is refused."""
    label = said.find_label(page.project, page.caller, label_id)
    if is_undo:
        undo_labels(caller=page.caller, trajectory=label.trajectory, ids=[label.pk])
    else:
        take_back_label(caller=page.caller, label=label)
    return _show_again(
        page,
        label.trajectory_id,
        step_id=label.step_id or "",
        message=f"{'Undone' if is_undo else 'Taken back'}: {said.name_fields(page.project, [label.field])}",
    )


@project_page("POST", role=Role.REVIEWER)
def take_back_pair(page: Page, preference_id: str, *, is_undo: bool = False) -> HttpResponse:
    """Take a correction or a comparison back, or undo it, likewise."""
    row = find_preference(caller=page.caller, preference_id=preference_id)
    queries.find_trajectory(page.project, row.trajectory_id)
    change = undo_preference if is_undo else take_back_preference
    change(caller=page.caller, preference=row)
    return _show_again(
        page, row.trajectory_id, message=f"{'Undone' if is_undo else 'Taken back'}: {row.get_kind_display().lower()}"
    )


def _show_again(page: Page, trajectory_id: str, *, message: str, step_id: str = "", undo: str = "") -> HttpResponse:
    """Show what was said and what it is worth now, of the whole and of the step: as fragments, or as the page again."""
    if not page.is_htmx:
        return page.done(message, to=page.url("trajectory", trajectory_id))
    found: Trajectory = queries.find_trajectory(page.project, trajectory_id)
    own = rewards.own_step_values(found, user=page.user)
    response = page.render(
        "console/parts/said_reply.html",
        trajectory=found,
        card=steps.read_cards([steps.find_step(found, step_id)], own=own)[0] if step_id else None,
        said_panel=said.read_panel(found, caller=page.caller, role=page.role, hidden=page.hidden),
        panel=rewards.read_panel(found, caller=page.caller, role=page.role, hidden=page.hidden),
    )
    return with_toast(response, message, undo=undo, undo_target="#said-panel")


@project_page("GET", "HEAD", "POST", role=Role.REVIEWER)
def correct(page: Page, trajectory_id: str, step_id: str) -> HttpResponse:
    """What a step should have said: its answer to edit."""
    found = queries.find_trajectory(page.project, trajectory_id)
    step = steps.find_step(found, step_id)
    answer = decode_json(step.answer)
    words = spoken_text(answer if isinstance(answer, dict) else {})
    given, why, fault, status = words, "", "", 200
    if page.request.method == "POST":
        given = page.request.POST.get("message", "").replace("\r\n", "\n")
        why = page.request.POST.get("text", "")
        try:
            kept = add_correction(caller=page.caller, step=step, message=given, text=why)
        except ServiceError as error:
            fault, status = error.message, error.status
        else:
            message = "Corrected: an answer to imitate, and better than what was said"
            to = f"{page.url('trajectory', found.pk)}?step={step.index}#step-{step.index}"
            return page.done(message, to=to, undo=page.url("undo_pair", kept.pk))
    return page.render(
        "console/correct.html",
        trajectory=found,
        card=steps.read_cards([step], own={})[0],
        view="chat",
        step_views=(),
        given=given,
        why=why,
        form_error=fault,
        status=status,
        curl=curl("POST", f"/api/v1/steps/{step.pk}/corrections", {"message": "what it should have said"}),
    )


@project_page()
def diff(page: Page, trajectory_id: str) -> HttpResponse:
    """Two trajectories side by side, step by step; where they part is marked."""
    found = queries.find_trajectory(page.project, trajectory_id)
    other_id, query = (page.request.GET.get(name, "").strip() for name in ("with", "q"))
    likely: Sequence[Trajectory] = ()
    other, fault, status = None, "", 200
    try:
        likely = comparing.list_likely(found, query=query, hidden=page.hidden, but=other_id)
        other = queries.find_trajectory(page.project, other_id) if other_id else None
    except ServiceError as error:
        fault, status = error.message, error.status
    return page.render(
        "console/diff.html",
        trajectory=found,
        other=other,
        other_id=other_id,
        query=query,
        likely=likely,
        rows=comparing.compare(found, other, user=page.user) if other else [],
        fault=fault,
        status=status,
        curl=curl("POST", "/api/v1/comparisons", _comparison(found, other)),
    )


def _comparison(found: Trajectory, other: Trajectory | None) -> dict[str, dict[str, str]]:
    return {"chosen": {"trajectory": found.pk}, "rejected": {"trajectory": other.pk if other else "traj_…"}}


@project_page("POST", role=Role.REVIEWER)
def prefer(page: Page, trajectory_id: str) -> HttpResponse:
    """Say which of two trajectories that stand side by side is better, or that they are as good."""
    form = page.request.POST
    left = queries.find_trajectory(page.project, trajectory_id)
    right = queries.find_trajectory(page.project, form.get("with", ""))
    better = form.get("better", "")
    if better not in PREFERRED:
        raise InvalidInput("say which is better: left, right or tie", field="better")
    chosen, rejected = (right, left) if better == "right" else (left, right)
    kept = add_comparison(
        caller=page.caller,
        chosen=Side(trajectory=chosen),
        rejected=Side(trajectory=rejected),
        is_tie=better == "tie",
        text=form.get("text", ""),
    )
    to = f"{page.url('diff', left.pk)}?with={right.pk}"
    return page.done(f"Kept: {PREFERRED[better]}", to=to, undo=page.url("undo_pair", kept.pk))
