"""Agents and keys."""

from datetime import timedelta

from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from apps.accounts.models import Agent, ApiKey, AuditEvent, Project, Scope, hash_key
from apps.console.queries.agents import list_agents
from apps.trajectories.datasets.models import Import, ImportedTrajectory
from apps.trajectories.models import Trajectory
from tests.factories.accounts import AgentFactory, ApiKeyFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory


def test_an_owner_creates_an_agent(owner_browser: Client, agent: Agent) -> None:
    response = owner_browser.post("/p/shop/agents", {"name": "Night shift"})
    assert response["Location"] == "/p/shop/agents/night-shift"
    assert "Night shift" in owner_browser.get("/p/shop/agents").content.decode()


def test_a_name_that_is_taken_keeps_the_form(owner_browser: Client, agent: Agent) -> None:
    response = owner_browser.post("/p/shop/agents", {"name": "Clerk"})
    html = response.content.decode()
    assert response.status_code == 400
    assert "has an agent clerk already" in html
    assert 'value="Clerk"' in html


def test_an_empty_name_is_refused(owner_browser: Client, agent: Agent) -> None:
    assert owner_browser.post("/p/shop/agents", {"name": ""}).status_code == 400
    assert owner_browser.post("/p/shop/agents", {"name": "???"}).status_code == 400
    assert Agent.objects.count() == 1


def test_a_new_key_is_shown_once_and_ready_to_use(owner_browser: Client, agent: Agent) -> None:
    made = owner_browser.post("/p/shop/agents/clerk/keys", {"name": "laptop", "scope": "manage"})
    key = ApiKey.objects.get()
    assert made["Location"] == f"/p/shop/agents/clerk/keys/{key.id}/new"
    response = owner_browser.get(made["Location"])
    html = response.content.decode()
    secret = html.split('<code id="secret">')[1].split("<")[0]
    assert hash_key(secret) == key.sha256
    assert (key.name, key.scope) == ("laptop", Scope.MANAGE)
    assert f"Bearer {secret}" in html
    assert "sendSessionAffinityHeaders" in html
    assert "&quot;max_tokens&quot;: 32" in html
    assert "max_tokens=32" in html
    assert response["Cache-Control"] == "no-store"
    assert secret not in owner_browser.get("/p/shop/agents/clerk").content.decode()
    again = owner_browser.get(made["Location"]).content.decode()
    assert "has been shown" in again
    assert secret not in again
    assert ApiKey.objects.count() == 1


def test_only_the_browser_that_made_a_key_is_shown_it(
    owner_browser: Client, viewer_browser: Client, stranger_browser: Client, agent: Agent
) -> None:
    address = owner_browser.post("/p/shop/agents/clerk/keys", {})["Location"]
    assert viewer_browser.get(address).status_code == 403
    assert stranger_browser.get(address).status_code == 404
    assert owner_browser.post(address).status_code == 405
    assert owner_browser.get("/p/shop/agents/clerk/keys/key_none/new").status_code == 404
    assert '<code id="secret">claw-' in owner_browser.get(address).content.decode()


def test_a_key_may_be_for_one_session(owner_browser: Client, agent: Agent) -> None:
    owner_browser.post("/p/shop/agents/clerk/keys", {"is_one_session": "on"})

    assert ApiKey.objects.get().is_one_session
    assert "one session" in owner_browser.get("/p/shop/agents/clerk").content.decode()


def test_an_unknown_scope_is_refused(owner_browser: Client, agent: Agent) -> None:
    assert owner_browser.post("/p/shop/agents/clerk/keys", {"scope": "everything"}).status_code == 400
    assert not ApiKey.objects.exists()


def test_the_panel_waits_and_turns_green(owner_browser: Client, key: ApiKey, agent: Agent) -> None:
    address = f"/p/shop/agents/clerk/keys/{key.id}/first-call"
    assert "Waiting for the first call" in owner_browser.get(address).content.decode()
    trajectory = Trajectory.objects.create(project=agent.project, agent=agent, key=key)
    html = owner_browser.get(address).content.decode()
    assert "It works" in html
    assert trajectory.id in html


def test_keys_of_scripts_are_counted_apart_from_the_agents_own(viewer_browser: Client, key: ApiKey) -> None:
    for scope in (Scope.MANAGE, Scope.ADMIN):
        ApiKeyFactory.create(agent=key.agent, scope=scope)
    [row] = list_agents(key.agent.project)
    assert (row.n_keys, row.n_script_keys) == (1, 2)
    assert ">2 for scripts</div>" in viewer_browser.get("/p/shop/agents").content.decode()


def test_an_owner_switches_a_key_off(owner_browser: Client, key: ApiKey) -> None:
    owner_browser.post(f"/p/shop/agents/clerk/keys/{key.id}/off")
    key.refresh_from_db()
    assert key.disabled_at
    assert AuditEvent.objects.filter(action="key.disabled", object_id=key.id).exists()
    assert "switched off <time" in owner_browser.get("/p/shop/agents/clerk").content.decode()
    assert owner_browser.post(f"/p/shop/agents/clerk/keys/{key.id}/off").status_code == 409


def test_who_may_not_is_told_whom_to_ask(viewer_browser: Client, owner_browser: Client, key: ApiKey) -> None:
    html = viewer_browser.get("/p/shop/agents").content.decode()
    assert "Ask owner@example.org" in html
    assert "disabled" in viewer_browser.get("/p/shop/agents/clerk").content.decode()


def test_the_page_says_why_prefixes_break(owner_browser: Client, agent: Agent) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    parent = StepFactory.create(trajectory=trajectory, index=0)
    for index, cause in enumerate(["transient", "transient", "edit", ""], start=1):
        StepFactory.create(trajectory=trajectory, index=index, parent=parent, prefix_break=cause)
    page = owner_browser.get(f"/p/shop/agents/{agent.slug}").content.decode()
    assert "Broken prefixes" in page
    assert page.index("50 %") < page.index("25 %")
    assert '<th class="num">Share</th>' in page  # as its cells are
    assert f"/api/v1/agents/{agent.pk}/keys" in page


def test_an_expired_key_is_not_said_to_work(owner_browser: Client, key: ApiKey) -> None:
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() + timedelta(days=1))
    assert "works until" in owner_browser.get("/p/shop/agents/clerk").content.decode()
    ApiKey.objects.filter(pk=key.pk).update(expires_at=timezone.now() - timedelta(days=1))
    html = owner_browser.get("/p/shop/agents/clerk").content.decode()
    assert "expired" in html
    assert "works until" not in html


def test_the_list_asks_as_much_for_many_agents_as_for_one(
    project: Project, agent: Agent, key: ApiKey, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    TrajectoryFactory.create(agent=agent, reward=0.5, n_steps=2, n_prompt_tokens=10, n_completion_tokens=5)
    TrajectoryFactory.create(agent=agent, reward=1.0, deleted_at=timezone.now())
    for name in ("Anna", "Zoe"):
        AgentFactory.create(project=project, name=name)
    with django_assert_num_queries(1):
        rows = list_agents(project)
    assert [row.agent.name for row in rows] == ["Anna", "Clerk", "Zoe"]
    clerk = rows[1]
    assert (clerk.n_keys, clerk.n_trajectories, clerk.n_steps, clerk.n_tokens) == (1, 1, 2, 15)
    assert clerk.mean_reward == 0.5
    assert clerk.last_seen_at is not None
    assert (rows[0].n_keys, rows[0].n_trajectories, rows[0].mean_reward, rows[0].last_seen_at) == (0, 0, None, None)


def test_imported_trajectories_are_no_calls(viewer_browser: Client, project: Project, agent: Agent) -> None:
    source = Import.objects.create(project=project, agent=agent, file_name="old.jsonl", n_bytes=1)
    for number in range(2):
        row = TrajectoryFactory.create(agent=agent, key=None, last_step_at=timezone.now())
        ImportedTrajectory.objects.create(source=source, project=project, digest=f"{number}", trajectory=row)
    shown = list_agents(project)[0]
    assert (shown.n_trajectories, shown.n_imported, shown.last_seen_at) == (2, 2, None)
    for address in ("/p/shop/agents", "/p/shop/agents/clerk"):
        html = viewer_browser.get(address).content.decode()
        assert "2 imported" in html
        assert "none yet" in html
    called = TrajectoryFactory.create(agent=agent, last_step_at=timezone.now() - timedelta(minutes=5))
    later = TrajectoryFactory.create(agent=agent, key=None, last_step_at=timezone.now())
    ImportedTrajectory.objects.create(source=source, project=project, digest="later", trajectory=later)
    shown = list_agents(project)[0]
    assert (shown.n_trajectories, shown.n_imported, shown.last_seen_at) == (4, 3, called.last_step_at)
