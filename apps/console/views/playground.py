"""A step played again on versions that an engine holds, and the better answer kept as a preference."""

import json
from typing import Any

from django.http import HttpResponse, QueryDict

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import playground as queries
from apps.console.queries import steps
from apps.console.snippets import curl
from apps.core.errors import InvalidInput, ServiceError
from apps.feedback.preferences.services import add_comparison
from apps.feedback.preferences.sides import Side, read_message
from apps.registry.speaking import list_held_versions


@project_page("GET", "HEAD", "POST", role=Role.REVIEWER)
def playground(page: Page, step_id: str) -> HttpResponse:
    """The prompt of a step, the versions to ask, and what they answered."""
    step = queries.find_step(page.project, step_id)
    form = page.request.POST
    played: list[queries.Played] = []
    fault, status = "", 200
    if page.request.method == "POST":
        try:
            versions = queries.choose_versions(page.project, form.getlist("version"))
            played = queries.play(step, versions, sampling=_read_sampling(form))
        except ServiceError as error:
            fault, status = error.message, error.status
    held, live = list_held_versions(page.project.pk), queries.find_live(page.project)
    chosen = form.getlist("version") if page.request.method == "POST" else queries.choose_first(held, live=live)
    return page.render(
        "console/playground.html",
        step=step,
        trajectory=step.trajectory,
        card=steps.read_cards([step], own={})[0],
        view="chat",
        step_views=(),
        held=held,
        live=live,
        chosen=chosen,
        patience=queries.PATIENCE_S,
        temperature=form.get("temperature", f"{step.temperature or 0.7:g}"),
        max_tokens=form.get("max_tokens", "512"),
        most=queries.MOST_AT_ONCE,
        played=[(one, json.dumps(one.raw)) for one in played],
        form_error=fault,
        status=status,
        curl=curl("POST", "/api/v1/comparisons", {"chosen": {"message": "…"}, "rejected": {"step": step.pk}}),
    )


def _read_sampling(form: QueryDict) -> queries.Sampling:
    try:
        temperature = float(form.get("temperature", "").replace(",", "."))
        max_tokens = int(form.get("max_tokens", ""))
    except ValueError:
        raise InvalidInput("temperature and tokens are numbers", field="temperature") from None
    if not 0 <= temperature <= 2 or not 1 <= max_tokens <= queries.MOST_TOKENS:
        raise InvalidInput(
            f"a temperature lies from 0 to 2, an answer has 1 to {queries.MOST_TOKENS} tokens", field="temperature"
        )
    return queries.Sampling(temperature=temperature, max_tokens=max_tokens)


@project_page("POST", role=Role.REVIEWER)
def keep(page: Page, step_id: str) -> HttpResponse:
    """Keep which is better: an answer that was played, or what the step said."""
    step = queries.find_step(page.project, step_id)
    form = page.request.POST
    [version] = queries.choose_versions(page.project, [form.get("version", "")])
    played = Side(message=_read_kept(form.get("message", "")), version=version)
    original = Side(step=step)
    is_better = form.get("better") == "played"
    kept = add_comparison(
        caller=page.caller,
        chosen=played if is_better else original,
        rejected=original if is_better else played,
        text=form.get("text", ""),
    )
    new, old = f"what version {version.number} said now", f"what step {step.index} said then"
    message = f"Kept: {new if is_better else old} is better than {old if is_better else new}"
    if page.is_htmx:  # the other answers stay, to be judged too
        return page.render("console/parts/kept.html", message=message, kept=kept)
    to = f"{page.url('trajectory', step.trajectory_id)}?step={step.index}#step-{step.index}"
    return page.done(message, to=to, undo=page.url("undo_pair", kept.pk))


def _read_kept(text: str) -> dict[str, Any]:
    try:
        return read_message(json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidInput("this is no answer that was played: play the step again", field="message") from None
