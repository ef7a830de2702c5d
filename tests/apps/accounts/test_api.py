"""Projects, agents and keys over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, AuditEvent, Project, User, hash_key
from apps.core.ids import new_id
from tests.conftest import client_with_secret
from tests.factories.accounts import AgentFactory, ProjectFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]


class TestProjects:
    URL = "/api/v1/projects"

    def test_a_person_sees_the_teams_projects(
        self, client_of: Login, viewer: User, project: Project, other_project: Project
    ) -> None:
        ProjectFactory.create(team=project.team, name="Another", slug="another")
        items = client_of(viewer).get(self.URL).json()["items"]
        assert [item["slug"] for item in items] == ["another", "shop"]

    def test_a_key_sees_its_own(self, key_client: APIClient, project: Project) -> None:
        ProjectFactory.create(team=project.team)
        assert [item["slug"] for item in key_client.get(self.URL).json()["items"]] == ["shop"]

    def test_asking_with_a_key_is_a_use_of_it(self, key_client: APIClient, key: ApiKey) -> None:
        key_client.get(self.URL)
        key.refresh_from_db()
        first = key.last_used_at
        assert first is not None
        key_client.get(self.URL)
        key.refresh_from_db()
        assert key.last_used_at == first

    def test_who_may(self, anonymous_client: APIClient, key_client: APIClient) -> None:
        assert anonymous_client.get(self.URL).status_code == 401
        assert key_client.post(self.URL, {}).status_code == 405


class TestAgents:
    URL = "/api/v1/agents?project=shop"

    def test_it_lists_by_name(self, client_of: Login, viewer: User, agent: Agent) -> None:
        AgentFactory.create(project=agent.project, name="Baker", slug="baker")
        AgentFactory.create()
        assert [item["slug"] for item in client_of(viewer).get(self.URL).json()["items"]] == ["baker", "clerk"]

    def test_a_key_needs_no_project(self, key_client: APIClient) -> None:
        assert [item["slug"] for item in key_client.get("/api/v1/agents").json()["items"]] == ["clerk"]

    def test_it_creates(self, client_of: Login, owner: User, project: Project) -> None:
        answer = client_of(owner).post(self.URL, {"name": "Web Shop"})
        assert (answer.status_code, answer.json()["slug"]) == (201, "web-shop")
        assert Agent.objects.get().project == project
        assert AuditEvent.objects.get().actor == owner.email

    def test_a_name_is_taken_once(self, client_of: Login, owner: User, agent: Agent) -> None:
        answer = client_of(owner).post(self.URL, {"name": "Clerk"})
        assert (answer.status_code, answer.json()["field"]) == (409, "name")

    @pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "§"}, {"name": "x" * 101}, {"name": "a", "slug": "b"}])
    def test_it_refuses_a_bad_body(self, client_of: Login, owner: User, project: Project, body: dict[str, Any]) -> None:
        assert client_of(owner).post(self.URL, body).status_code == 400
        assert not Agent.objects.exists()

    def test_who_may(
        self,
        client_of: Login,
        viewer: User,
        mate: User,
        trainer: User,
        stranger: User,
        key_client: APIClient,
        manage_client: APIClient,
        anonymous_client: APIClient,
    ) -> None:
        body = {"name": "New"}
        assert anonymous_client.post(self.URL, body).status_code == 401
        assert client_of(stranger).post(self.URL, body).status_code == 404
        assert client_of(stranger).get(self.URL).status_code == 404
        assert client_of(viewer).post(self.URL, body).status_code == 403
        assert client_of(mate).post(self.URL, body).status_code == 403
        assert client_of(trainer).post(self.URL, body).status_code == 403
        assert key_client.post(self.URL, body).status_code == 403
        assert manage_client.post(self.URL, body).status_code == 403
        assert manage_client.put(self.URL, body).status_code == 405


class TestKeys:
    @pytest.fixture
    def url(self, agent: Agent) -> str:
        return f"/api/v1/agents/{agent.id}/keys"

    def test_it_shows_the_secret_once(self, client_of: Login, owner: User, url: str) -> None:
        answer = client_of(owner).post(url, {"name": "laptop"})
        assert answer.status_code == 201
        secret = answer.json()["secret"]
        key = ApiKey.objects.get()
        assert (key.sha256, key.scope, key.created_by) == (hash_key(secret), "agent", owner)
        listed = client_of(owner).get(url)
        assert secret not in listed.content.decode()
        assert key.sha256 not in listed.content.decode()
        assert listed.json()["items"][0]["last_four"] == secret[-4:]
        assert client_with_secret(secret).get("/api/v1/projects").status_code == 200

    def test_an_expired_key_is_refused(self, client_of: Login, owner: User, url: str) -> None:
        answer = client_of(owner).post(url, {"expires_at": "2020-01-01T00:00:00Z"})
        assert client_with_secret(answer.json()["secret"]).get("/api/v1/projects").status_code == 401

    @pytest.mark.parametrize("is_one_session", [False, True])
    def test_a_key_may_be_for_one_session(
        self, client_of: Login, owner: User, url: str, *, is_one_session: bool
    ) -> None:
        answer = client_of(owner).post(url, {"is_one_session": True} if is_one_session else {})

        assert answer.json()["is_one_session"] == is_one_session
        assert ApiKey.objects.get().is_one_session == is_one_session

    @pytest.mark.parametrize(
        "body",
        [
            {"scope": "root"},
            {"name": "x" * 101},
            {"expires_at": "soon"},
            {"secret": "x"},
            {"is_one_session": "perhaps"},
        ],
    )
    def test_it_refuses_a_bad_body(self, client_of: Login, owner: User, url: str, body: dict[str, Any]) -> None:
        assert client_of(owner).post(url, body).status_code == 400
        assert not ApiKey.objects.exists()

    def test_who_may(
        self,
        client_of: Login,
        viewer: User,
        stranger: User,
        key_client: APIClient,
        other_client: APIClient,
        anonymous_client: APIClient,
        url: str,
    ) -> None:
        assert anonymous_client.get(url).status_code == 401
        for client in (client_of(stranger), other_client):
            assert client.get(url).status_code == 404
            assert client.post(url, {}).status_code == 404
        assert client_of(viewer).get(url).status_code == 200
        assert client_of(viewer).post(url, {}).status_code == 403
        assert key_client.post(url, {"scope": "manage"}).status_code == 403
        assert key_client.delete(url).status_code == 405

    @pytest.mark.parametrize("agent_id", [new_id("agnt"), "x", "%00"])
    def test_a_missing_agent_is_404(self, client_of: Login, owner: User, agent_id: str) -> None:
        assert client_of(owner).get(f"/api/v1/agents/{agent_id}/keys").status_code == 404


class TestDisable:
    @pytest.fixture
    def url(self, key: ApiKey) -> str:
        return f"/api/v1/keys/{key.id}/disable"

    def test_it_works_once(self, client_of: Login, owner: User, key_client: APIClient, url: str) -> None:
        assert client_of(owner).post(url).json()["disabled_at"]
        assert client_of(owner).post(url).status_code == 409
        assert key_client.get("/api/v1/projects").status_code == 401

    def test_who_may(
        self,
        client_of: Login,
        mate: User,
        stranger: User,
        other_client: APIClient,
        anonymous_client: APIClient,
        key_client: APIClient,
        url: str,
    ) -> None:
        assert anonymous_client.post(url).status_code == 401
        assert client_of(stranger).post(url).status_code == 404
        assert other_client.post(url).status_code == 404
        assert client_of(mate).post(url).status_code == 403
        assert key_client.post(url).status_code == 403
        assert key_client.get(url).status_code == 405

    @pytest.mark.parametrize("key_id", [new_id("key"), "x", "%00"])
    def test_a_missing_key_is_404(self, client_of: Login, owner: User, key_id: str) -> None:
        assert client_of(owner).post(f"/api/v1/keys/{key_id}/disable").status_code == 404


def test_the_schema_names_every_address(client_of: Login, owner: User) -> None:
    schema = client_of(owner).get("/api/schema", {"format": "json"})
    assert schema.status_code == 200
    text = schema.content.decode()
    for path in (
        "projects",
        "agents/{agent_id}/keys",
        "trajectories/{trajectory_id}/steps",
        "responses/{response_id}/labels",
    ):
        assert f"/api/v1/{path}" in text
