"""Agents and their keys."""

from django.http import HttpResponse
from django.shortcuts import redirect

from apps.accounts.models import Agent, Role, Scope
from apps.accounts.services import create_agent, create_key, disable_key
from apps.console.forms import AgentForm, KeyForm
from apps.console.page import Page, project_page
from apps.console.queries import agents as queries
from apps.console.queries.home import context_length, find_policy
from apps.console.snippets import base_url, curl, first_calls
from apps.core.errors import ServiceError


@project_page("GET", "HEAD", "POST")
def agents(page: Page) -> HttpResponse:
    """List agents; create one."""
    if page.request.method != "POST":
        return _render_agents(page, AgentForm())
    page.require(Role.OWNER)
    form = AgentForm(page.request.POST)
    if form.is_valid():
        try:
            agent = create_agent(project=page.project, name=form.cleaned_data["name"], actor=page.caller.name)
        except ServiceError as error:
            form.add_error("name", error.message)
        else:
            return page.done(f"{agent.name} is here. Give it a key.", to=page.url("agent", agent.slug))
    return _render_agents(page, form, status=400)


def _render_agents(page: Page, form: AgentForm, *, status: int = 200) -> HttpResponse:
    rows = queries.list_agents(page.project, hidden=page.hidden)
    return page.render(
        "console/agents.html",
        rows=rows,
        form=form,
        curl=curl("POST", "/api/v1/agents", {"name": "shop"}),
        status=status,
    )


@project_page()
def agent(page: Page, agent_slug: str) -> HttpResponse:
    """One agent with its keys."""
    return _render_agent(page, queries.find_agent(page.project, agent_slug))


def _render_agent(page: Page, found: Agent, *, form: KeyForm | None = None, status: int = 200) -> HttpResponse:
    return page.render(
        "console/agent.html",
        row=queries.read_agent(found, hidden=page.hidden),
        agent=found,
        breaks=queries.read_breaks(found),
        keys=queries.list_keys(found),
        base_url=base_url(),
        key_form=form or KeyForm(),
        curl=curl("POST", f"/api/v1/agents/{found.pk}/keys", {"name": "laptop"}),
        status=status,
    )


@project_page("POST", role=Role.OWNER)
def new_key(page: Page, agent_slug: str) -> HttpResponse:
    """Create a key and go where its secret is shown, so that loading that page again makes no other key."""
    found = queries.find_agent(page.project, agent_slug)
    form = KeyForm(page.request.POST)
    if not form.is_valid():
        return _render_agent(page, found, form=form, status=400)
    key, secret = create_key(
        agent=found,
        actor=page.caller.name,
        name=form.cleaned_data["name"],
        scope=Scope(form.cleaned_data["scope"]),
        created_by=page.user,
        is_one_session=form.cleaned_data["is_one_session"],
    )
    page.show_once(secret, of=key.id)
    return redirect(page.url("shown_key", found.slug, key.id))


@project_page("GET", role=Role.OWNER)
def shown_key(page: Page, agent_slug: str, key_id: str) -> HttpResponse:
    """Show a new key's secret to the browser that made it, this once."""
    found = queries.find_agent(page.project, agent_slug)
    key = queries.find_key(found, key_id)
    secret = page.take_shown_once(key.id)
    response = page.render(
        "console/new_key.html",
        agent=found,
        key=key,
        secret=secret,
        policy=find_policy(page.project),
        **first_calls(secret=secret, context=context_length(page.project)),
        base_url=base_url(),
    )
    response["Cache-Control"] = "no-store"
    return response


@project_page()
def first_call(page: Page, agent_slug: str, key_id: str) -> HttpResponse:
    """The panel that waits for a key's first call."""
    found = queries.find_agent(page.project, agent_slug)
    key = queries.find_key(found, key_id)
    return page.render(
        "console/parts/first_call.html", agent=found, key=key, trajectory=queries.first_trajectory_of(key)
    )


@project_page("POST", role=Role.OWNER)
def switch_key_off(page: Page, agent_slug: str, key_id: str) -> HttpResponse:
    """Switch a key off for good."""
    found = queries.find_agent(page.project, agent_slug)
    key = queries.find_key(found, key_id)
    disable_key(key=key, actor=page.caller.name)
    message = f"Key {key} is switched off. Calls with it are refused from now on."
    return page.done(message, to=page.url("agent", found.slug))
