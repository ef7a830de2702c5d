"""Limits and capture policies on their page."""

import pytest
from django.test import Client

from apps.accounts.models import Agent, ApiKey, AuditEvent, CaptureMode
from apps.accounts.services import count_passed_calls, disable_key, set_capture
from tests.factories.accounts import ApiKeyFactory

PAGE = "/p/shop/agents/clerk/policies"
CAPTURE = "/p/shop/agents/clerk/capture"


def limits(name: str) -> str:
    return f"/p/shop/agents/clerk/limits/{name}"


def test_the_agents_page_leads_there(viewer_browser: Client, agent: Agent) -> None:
    assert PAGE in viewer_browser.get("/p/shop/agents/clerk").content.decode()


def test_it_shows_what_holds(viewer_browser: Client, key: ApiKey, agent: Agent) -> None:
    key.requests_per_minute = 77
    key.save()
    own = [{"name": "ticket", "pattern": r"TKT-\d+"}]
    set_capture(agent=agent, actor="x", mode=CaptureMode.REDACT, patterns=["email"], own_patterns=own)
    count_passed_calls({agent.id: 5})
    html = viewer_browser.get(PAGE).content.decode()

    assert 'value="77"' in html
    assert 'value="redact" selected' in html
    assert 'value="email" checked' in html
    assert 'value="phone" checked' not in html
    assert r"ticket TKT-\d+" in html
    assert "Passed through uncaptured: 5 on" in html
    assert "Ask owner@example.org" in html or "ask" in html.lower()


@pytest.mark.parametrize("kind", ["key", "project", "team"])
def test_an_owner_sets_and_clears_limits(owner_browser: Client, key: ApiKey, agent: Agent, kind: str) -> None:
    target = {"key": key, "project": agent.project, "team": agent.project.team}[kind]
    address = limits(key.id if kind == "key" else kind)
    answer = owner_browser.post(address, {"requests_per_minute": "60", "tokens_per_day": "1000000"})
    assert answer["Location"] == PAGE
    target.refresh_from_db()
    assert (target.requests_per_minute, target.tokens_per_day, target.max_in_flight) == (60, 1_000_000, None)
    owner_browser.post(address, {"max_in_flight": "2"})
    target.refresh_from_db()
    assert (target.requests_per_minute, target.max_in_flight) == (None, 2)
    assert AuditEvent.objects.filter(action="limits.set", object_id=target.pk).count() == 2


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "9" * 20])
def test_a_bad_limit_keeps_the_form(owner_browser: Client, key: ApiKey, value: str) -> None:
    answer = owner_browser.post(limits(key.id), {"requests_per_minute": value, "max_in_flight": "3"})
    html = answer.content.decode()
    assert answer.status_code == 400
    assert html.count('role="alert"') == 1
    assert f'value="{value}"' in html
    key.refresh_from_db()
    assert key.max_in_flight is None


def test_only_keys_of_the_agent_that_work_have_limits(
    owner_browser: Client, key: ApiKey, agent: Agent, other_key: ApiKey
) -> None:
    off = ApiKeyFactory.create(agent=agent)
    disable_key(key=off, actor="x")
    for name in (off.id, other_key.id, "nobody", "key_00000000000000000000000000"):
        assert owner_browser.post(limits(name), {"max_in_flight": "1"}).status_code == 404
    assert limits(off.id) not in owner_browser.get(PAGE).content.decode()


def test_an_owner_chooses_what_is_kept(owner_browser: Client, agent: Agent) -> None:
    fields = {"mode": "redact", "patterns": ["email", "iban"], "own_patterns": "ticket TKT-[0-9]+\n\nroom  Room [A-Z]"}
    assert owner_browser.post(CAPTURE, fields)["Location"] == PAGE
    agent.refresh_from_db()
    assert (agent.capture, agent.patterns) == (CaptureMode.REDACT, ["email", "iban"])
    assert agent.own_patterns == [
        {"name": "ticket", "pattern": "TKT-[0-9]+"},
        {"name": "room", "pattern": "Room [A-Z]"},
    ]
    assert owner_browser.post(CAPTURE, {"mode": "off"})["Location"] == PAGE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "some"}, "valid choice"),
        ({"mode": "redact"}, "a pattern at least"),
        ({"mode": "redact", "patterns": ["shoe"]}, "valid choice"),
        ({"mode": "redact", "own_patterns": "ticket"}, "needs a name, a space and a pattern"),
        ({"mode": "redact", "own_patterns": "a.b x"}, "up to 20 letters"),
        ({"mode": "redact", "own_patterns": "ticket ("}, "RE2 does not take it"),
        ({"mode": "redact", "own_patterns": "email x"}, "a name of its own"),
    ],
)
def test_a_bad_policy_keeps_the_form_and_says_why(
    owner_browser: Client, agent: Agent, fields: dict[str, str], words: str
) -> None:
    answer = owner_browser.post(CAPTURE, fields)
    html = answer.content.decode()
    assert answer.status_code == 400
    assert words in html
    assert fields.get("own_patterns", "") in html
    agent.refresh_from_db()
    assert agent.capture == CaptureMode.ON
