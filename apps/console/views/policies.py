"""An agent's policies: what the pool keeps of its calls, and the limits that hold for them."""

from dataclasses import dataclass

from django.http import HttpResponse

from apps.accounts.models import Agent, ApiKey, CaptureMode, Project, Role, Team
from apps.accounts.services import set_capture, set_limits
from apps.console.page import Page, project_page
from apps.console.policy_forms import CaptureForm, LimitsForm
from apps.console.queries import agents as queries
from apps.core.errors import InvalidInput, NotFound

TEAM, PROJECT = "team", "project"


@dataclass(frozen=True, kw_only=True)
class LimitsCard:
    """One thing with its limits as the page shows it. `name` stands in the address."""

    name: str
    title: str
    hint: str
    form: LimitsForm


@project_page()
def policies(page: Page, agent_slug: str) -> HttpResponse:
    """Show the agent's policies."""
    agent = queries.find_agent(page.project, agent_slug)
    return _render(page, agent)


@project_page("POST", role=Role.OWNER)
def change_capture(page: Page, agent_slug: str) -> HttpResponse:
    """Say what the pool keeps of the agent's calls from now on."""
    agent = queries.find_agent(page.project, agent_slug)
    form = CaptureForm(page.request.POST)
    if not form.is_valid():
        return _render(page, agent, capture=form, status=400)
    values = form.cleaned_data
    try:
        set_capture(
            agent=agent,
            actor=page.caller.name,
            mode=CaptureMode(values["mode"]),
            patterns=values["patterns"],
            own_patterns=values["own_patterns"],
        )
    except InvalidInput as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _render(page, agent, capture=form, status=400)
    return page.done("The policy holds for the calls from now on.", to=page.url("agent_policies", agent.slug))


@project_page("POST", role=Role.OWNER)
def change_limits(page: Page, agent_slug: str, name: str) -> HttpResponse:
    """Set the limits of a key of the agent, of the project or of the team."""
    agent = queries.find_agent(page.project, agent_slug)
    target = _find_target(page, agent, name)
    form = LimitsForm(page.request.POST)
    if not form.is_valid():
        return _render(page, agent, typed={name: form}, status=400)
    set_limits(target, limits=form.cleaned_data, actor=page.caller.name)
    return page.done("The limits hold from now on.", to=page.url("agent_policies", agent.slug))


def _find_target(page: Page, agent: Agent, name: str) -> Team | Project | ApiKey:
    if name == TEAM:
        return page.project.team
    if name == PROJECT:
        return page.project
    key = queries.find_key(agent, name)
    if key.disabled_at is not None:
        raise NotFound("this key is switched off")
    return key


def _render(
    page: Page,
    agent: Agent,
    *,
    capture: CaptureForm | None = None,
    typed: dict[str, LimitsForm] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the page; forms that were filled in wrongly (`capture`, `typed` by name) stand in for what holds."""
    keys = [key for key in queries.list_keys(agent) if key.disabled_at is None]
    team = page.project.team
    targets: list[tuple[str, Team | Project | ApiKey, str, str]] = [
        *((key.id, key, f"Key {key}", key.name or "of this agent") for key in keys),
        (PROJECT, page.project, f"Project {page.project.name}", "all its agents together"),
        (TEAM, team, f"Team {team.name}", "all its projects together"),
    ]
    cards = [
        LimitsCard(name=name, title=title, hint=hint, form=(typed or {}).get(name) or _form_of(target))
        for name, target, title, hint in targets
    ]
    return page.render(
        "console/policies.html",
        agent=agent,
        capture=capture or CaptureForm.of(agent),
        cards=cards,
        passed_calls=agent.recent_passed_calls()[:7],
        status=status,
    )


def _form_of(target: Team | Project | ApiKey) -> LimitsForm:
    return LimitsForm(initial=target.limits())
