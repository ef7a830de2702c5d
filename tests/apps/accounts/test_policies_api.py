"""Limits and capture policies over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts import services
from apps.accounts.models import Agent, ApiKey, AuditEvent, CaptureMode, Project, Scope, Team, User
from apps.core.ids import new_id
from apps.core.redaction import BUILT_IN_NAMES
from tests.factories.accounts import AgentFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
NONE = dict.fromkeys(["requests_per_minute", "tokens_per_minute", "max_in_flight", "tokens_per_day"])


@pytest.fixture
def admin_client(manage_key: ApiKey, manage_client: APIClient) -> APIClient:
    ApiKey.objects.filter(pk=manage_key.pk).update(scope=Scope.ADMIN)
    return manage_client


class TestLimits:
    @pytest.fixture(params=["key", "project", "team"])
    def target(self, request: pytest.FixtureRequest, key: ApiKey) -> ApiKey | Project | Team:
        project = key.agent.project
        targets: dict[str, ApiKey | Project | Team] = {"key": key, "project": project, "team": project.team}
        return targets[request.param]

    @pytest.fixture
    def url(self, target: ApiKey | Project | Team) -> str:
        if isinstance(target, Project):
            return f"/api/v1/projects/{target.slug}/limits"
        return f"/api/v1/{'keys' if isinstance(target, ApiKey) else 'teams'}/{target.id}/limits"

    def test_there_are_none_at_first(self, client_of: Login, viewer: User, url: str) -> None:
        assert client_of(viewer).get(url).json() == NONE

    def test_an_owner_sets_those_that_are_named(
        self, client_of: Login, owner: User, url: str, target: ApiKey | Project | Team
    ) -> None:
        client = client_of(owner)
        assert client.patch(url, {"requests_per_minute": 60, "tokens_per_day": 10**9}).status_code == 200
        answer = client.patch(url, {"tokens_per_day": None, "max_in_flight": 4})
        assert answer.json() == {**NONE, "requests_per_minute": 60, "max_in_flight": 4}
        assert client.get(url).json() == answer.json()
        event = AuditEvent.objects.latest("id")
        assert (event.action, event.object_id, event.actor) == ("limits.set", target.id, owner.email)
        assert event.detail == {"tokens_per_day": "none", "max_in_flight": "4"}

    @pytest.mark.parametrize(
        "body",
        [
            {},
            [],
            {"requests_per_minute": 0},
            {"requests_per_minute": -1},
            {"requests_per_minute": 1.5},
            {"tokens_per_minute": "many"},
            {"tokens_per_day": 10**13},
            {"max_in_flight": 1, "per_hour": 1},
        ],
    )
    def test_it_refuses_a_bad_body(self, client_of: Login, owner: User, url: str, body: Any) -> None:
        assert client_of(owner).patch(url, body).status_code == 400
        assert client_of(owner).get(url).json() == NONE

    def test_who_may(
        self,
        client_of: Login,
        trainer: User,
        stranger: User,
        other_client: APIClient,
        anonymous_client: APIClient,
        manage_client: APIClient,
        url: str,
        target: ApiKey | Project | Team,
    ) -> None:
        body = {"max_in_flight": 1}
        assert anonymous_client.patch(url, body).status_code == 401
        for client in (client_of(stranger), other_client):
            assert client.get(url).status_code == 404
            assert client.patch(url, body).status_code == 404
        assert client_of(trainer).get(url).status_code == 200
        assert client_of(trainer).patch(url, body).status_code == 403
        assert manage_client.get(url).status_code == 200
        assert manage_client.patch(url, body).status_code == 403
        assert client_of(trainer).put(url, body).status_code == 405

    def test_a_key_of_scope_admin_sets_all_but_the_teams(
        self, admin_client: APIClient, url: str, target: ApiKey | Project | Team
    ) -> None:
        answer = admin_client.patch(url, {"max_in_flight": 1})
        if isinstance(target, Team):
            assert answer.status_code == 403
            assert "an owner log in" in answer.json()["detail"]
            assert admin_client.get(url).json() == NONE
        else:
            assert (answer.status_code, answer.json()["max_in_flight"]) == (200, 1)

    def test_a_key_sees_its_own_team_only(self, admin_client: APIClient, other_project: Project) -> None:
        url = f"/api/v1/teams/{other_project.team_id}/limits"
        assert admin_client.get(url).status_code == 404
        assert admin_client.patch(url, {"max_in_flight": 1}).status_code == 404

    @pytest.mark.parametrize("name", ["x", "%00", new_id("key"), new_id("team")])
    def test_what_is_missing_is_404(self, client_of: Login, owner: User, project: Project, name: str) -> None:
        for kind in ("keys", "projects", "teams"):
            assert client_of(owner).get(f"/api/v1/{kind}/{name}/limits").status_code == 404


class TestCapture:
    @pytest.fixture
    def url(self, agent: Agent) -> str:
        return f"/api/v1/agents/{agent.id}/capture"

    def test_everything_is_captured_at_first(self, client_of: Login, viewer: User, url: str) -> None:
        assert client_of(viewer).get(url).json() == {
            "mode": "on",
            "patterns": list(BUILT_IN_NAMES),
            "own_patterns": [],
            "known_patterns": list(BUILT_IN_NAMES),
            "passed_calls": [],
        }

    def test_an_owner_chooses_what_is_taken_out(self, client_of: Login, owner: User, url: str, agent: Agent) -> None:
        own = [{"name": "ticket", "pattern": r"TKT-\d+"}]
        answer = client_of(owner).patch(url, {"mode": "redact", "patterns": ["email"], "own_patterns": own})
        assert answer.status_code == 200
        assert (answer.json()["mode"], answer.json()["patterns"], answer.json()["own_patterns"]) == (
            "redact",
            ["email"],
            own,
        )
        event = AuditEvent.objects.latest("id")
        assert (event.action, event.object_id) == ("capture.set", agent.id)
        assert event.detail == {"mode": "redact", "patterns": "email, ticket"}

    def test_patterns_that_are_not_named_stay(self, client_of: Login, owner: User, url: str) -> None:
        client_of(owner).patch(url, {"mode": "redact", "patterns": ["phone"]})
        answer = client_of(owner).patch(url, {"mode": "off"})
        assert (answer.json()["mode"], answer.json()["patterns"]) == ("off", ["phone"])

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "mode"),
            ({"mode": "maybe"}, "mode"),
            ({"mode": "redact", "patterns": ["shoe_size"]}, "patterns"),
            ({"mode": "redact", "patterns": []}, "patterns"),
            ({"mode": "redact", "patterns": "email"}, "patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "a"}]}, "own_patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "a b", "pattern": "x"}]}, "own_patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "a", "pattern": "(x"}]}, "own_patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "a", "pattern": "x*"}]}, "own_patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "email", "pattern": "x"}]}, "own_patterns"),
            ({"mode": "redact", "own_patterns": [{"name": "a", "pattern": "x"}] * 2}, "own_patterns"),
            ({"mode": "on", "own_patterns": [{"name": f"p{n}", "pattern": "x"} for n in range(21)]}, "own_patterns"),
            ({"mode": "on", "keep": True}, "keep"),
        ],
    )
    def test_it_refuses_a_bad_body_and_names_the_field(
        self, client_of: Login, owner: User, url: str, agent: Agent, body: dict[str, Any], field: str
    ) -> None:
        answer = client_of(owner).patch(url, body)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
        agent.refresh_from_db()
        assert (agent.capture, agent.own_patterns) == (CaptureMode.ON, [])

    def test_who_may(
        self,
        client_of: Login,
        trainer: User,
        stranger: User,
        other_client: APIClient,
        anonymous_client: APIClient,
        manage_client: APIClient,
        url: str,
    ) -> None:
        body = {"mode": "off"}
        assert anonymous_client.patch(url, body).status_code == 401
        for client in (client_of(stranger), other_client):
            assert client.get(url).status_code == 404
            assert client.patch(url, body).status_code == 404
        for client in (client_of(trainer), manage_client):
            assert client.get(url).status_code == 200
            assert client.patch(url, body).status_code == 403
        assert client_of(trainer).put(url, body).status_code == 405

    @pytest.mark.parametrize("agent_id", [new_id("agnt"), "x", "%00"])
    def test_a_missing_agent_is_404(self, client_of: Login, owner: User, agent_id: str) -> None:
        assert client_of(owner).get(f"/api/v1/agents/{agent_id}/capture").status_code == 404

    def test_calls_that_passed_through_are_counted_by_day(
        self, client_of: Login, viewer: User, url: str, agent: Agent
    ) -> None:
        other = AgentFactory.create()
        services.count_passed_calls({agent.id: 2, other.id: 5, new_id("agnt"): 1})
        services.count_passed_calls({agent.id: 3})
        days = client_of(viewer).get(url).json()["passed_calls"]
        assert [day["n_calls"] for day in days] == [5]
