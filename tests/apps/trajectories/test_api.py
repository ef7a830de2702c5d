"""Trajectories over REST: each endpoint with the same litany."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, Project, User
from apps.core.ids import new_id
from apps.trajectories.models import Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_pending
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

LIST = "/api/v1/trajectories"

Login = Callable[[User], APIClient]


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent, title="hello")


@pytest.fixture
def url(trajectory: Trajectory) -> str:
    return f"{LIST}/{trajectory.id}"


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class TestOpen:
    @pytest.mark.parametrize("data", ["[" * 100_000, '{"metadata": {"a": ' + "[" * 50_000 + "]" * 50_000 + "}}"])
    def test_it_refuses_what_no_parser_can_walk(self, key_client: APIClient, data: str) -> None:
        answer = key_client.post(LIST, data, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (400, "parse_error")

    def test_it_refuses_what_is_too_large(self, key_client: APIClient) -> None:
        answer = key_client.post(LIST, {"metadata": {"a": "x" * 3_000_000}})
        assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")

    def test_no_project_has_a_nul_in_its_name(self, key_client: APIClient) -> None:
        answer = key_client.post(f"{LIST}?project=%00", {})
        assert (answer.status_code, answer.json()["field"]) == (400, "project")

    def test_it_refuses_what_its_address_cannot_say(self, key_client: APIClient) -> None:
        answer = key_client.post(f"{LIST}?agent=clerk", {})
        assert (answer.status_code, answer.json()["field"]) == (400, "agent")

    def test_it_works(self, key_client: APIClient, agent: Agent, key: ApiKey) -> None:
        body = {"channel": "val", "group": "g1", "metadata": {"task": 3}}
        answer = key_client.post(LIST, body)
        assert answer.status_code == 201
        trajectory = Trajectory.objects.get()
        assert answer.json()["id"] == trajectory.id
        assert answer.json()["base_url"].endswith(f"/t/{trajectory.id}/v1")
        assert (trajectory.agent, trajectory.key, trajectory.channel, trajectory.group) == (agent, key, "val", "g1")
        assert trajectory.metadata == {"task": 3}

    def test_an_empty_body_is_enough_for_a_key(self, key_client: APIClient) -> None:
        assert key_client.post(LIST).status_code == 201
        assert Trajectory.objects.get().channel == "train"

    def test_a_person_names_project_and_agent(self, client_of: Login, mate: User, agent: Agent) -> None:
        client = client_of(mate)
        assert client.post(f"{LIST}?project=shop", {"agent": "clerk"}).status_code == 201
        assert client.post(f"{LIST}?project=shop", {}).json()["field"] == "agent"
        assert client.post(f"{LIST}?project=shop", {"agent": "nobody"}).status_code == 404
        assert client.post(LIST, {"agent": "clerk"}).status_code == 404

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"channel": "test"}, "channel"),
            ({"group": "g" * 101}, "group"),
            ({"metadata": "text"}, "metadata"),
            ({"metadata": {"a": "x" * 20_000}}, "metadata"),
            ({"metadata": {"a": "\x00"}}, "metadata"),
            ({"metadata": {"a": "\ud800"}}, "metadata"),
            ({"metadata": {"a": [{"\udfff": 1}]}}, "metadata"),
            ({"metadata": {"a": nested(200)}}, "metadata"),
            ({"\udc00": 1}, "non_field_errors"),
            ({"chanel": "val"}, "chanel"),
        ],
    )
    def test_it_refuses_a_bad_body(self, key_client: APIClient, body: dict[str, Any], field: str) -> None:
        answer = key_client.post(LIST, json.dumps(body), content_type="application/json")
        assert answer.status_code == 400
        assert answer["Content-Type"] == "application/problem+json"
        assert answer.json()["field"] == field
        assert not Trajectory.objects.exists()

    @pytest.mark.parametrize("data", ["{", "[]", '"x"', "null"])
    def test_it_refuses_what_is_no_json_object(self, key_client: APIClient, data: str) -> None:
        answer = key_client.post(LIST, data, content_type="application/json")
        assert answer.status_code == 400

    def test_it_needs_a_role(self, client_of: Login, viewer: User, agent: Agent) -> None:
        assert client_of(viewer).post(f"{LIST}?project=shop", {"agent": "clerk"}).status_code == 403

    def test_it_hides_from_strangers(self, client_of: Login, stranger: User, agent: Agent) -> None:
        assert client_of(stranger).post(f"{LIST}?project=shop", {"agent": "clerk"}).status_code == 404


class TestList:
    def test_it_works_and_pages(self, key_client: APIClient, agent: Agent) -> None:
        made = [TrajectoryFactory.create(agent=agent).id for _ in range(5)]
        first = key_client.get(LIST, {"limit": 3}).json()
        assert [item["id"] for item in first["items"]] == made[:1:-1]
        rest = key_client.get(LIST, {"limit": 3, "before": first["next_before"]}).json()
        assert [item["id"] for item in rest["items"]] == made[1::-1]
        assert rest["next_before"] is None

    @pytest.mark.parametrize(
        ("query", "n_found"),
        [
            ({"agent": "clerk"}, 2),
            ({"agent": "nobody"}, 0),
            ({"channel": "val"}, 1),
            ({"state": "complete"}, 1),
            ({"group": "g"}, 1),
            ({"has_reward": "1"}, 1),
            ({"has_reward": "0"}, 1),
            ({"is_excluded": "true"}, 0),
            ({}, 2),
        ],
    )
    def test_it_filters(self, key_client: APIClient, agent: Agent, query: dict[str, str], n_found: int) -> None:
        TrajectoryFactory.create(agent=agent, channel="val", group="g", reward=0.0)
        TrajectoryFactory.create(agent=agent, state=TrajectoryState.COMPLETE)
        assert len(key_client.get(LIST, query).json()["items"]) == n_found

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ({"limit": "0"}, "limit"),
            ({"limit": "many"}, "limit"),
            ({"limit": "201"}, "limit"),
            ({"channel": "x"}, "channel"),
            ({"has_reward": "maybe"}, "has_reward"),
            ({"before": "\x00"}, "before"),
            ({"sort": "asc"}, "sort"),
        ],
    )
    def test_it_refuses_bad_filters(self, key_client: APIClient, query: dict[str, str], field: str) -> None:
        answer = key_client.get(LIST, query)
        assert answer.status_code == 400
        assert answer.json()["field"] == field

    def test_nobody_else_sees_it(
        self,
        other_client: APIClient,
        client_of: Login,
        stranger: User,
        anonymous_client: APIClient,
        trajectory: Trajectory,
    ) -> None:
        assert other_client.get(LIST).json()["items"] == []
        assert other_client.get(LIST, {"project": "shop"}).status_code == 404
        assert client_of(stranger).get(LIST, {"project": "shop"}).status_code == 404
        assert anonymous_client.get(LIST).status_code == 401

    def test_a_person_says_which_project(self, client_of: Login, viewer: User, trajectory: Trajectory) -> None:
        client = client_of(viewer)
        assert client.get(LIST, {"project": "shop"}).status_code == 200
        assert client.get(LIST).status_code == 404


class TestRead:
    def test_it_shows_the_steps_in_short(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        step = StepFactory.create(trajectory=trajectory, index=0)
        shown = key_client.get(url).json()
        assert shown["title"] == "hello"
        assert [item["id"] for item in shown["steps"]] == [step.id]
        assert "messages" not in shown["steps"][0]
        assert shown["next_after"] is None

    def test_it_shows_where_things_come_from(
        self, key_client: APIClient, agent: Agent, trajectory: Trajectory, url: str
    ) -> None:
        starter = TrajectoryFactory.create(agent=agent)
        Trajectory.objects.filter(pk=trajectory.pk).update(parent=starter)
        first = StepFactory.create(trajectory=trajectory, index=0)
        StepFactory.create(trajectory=trajectory, index=1, parent=first, epoch=2, token_check="count")

        shown = key_client.get(url).json()

        assert shown["parent"] == starter.id
        told = [(step["parent"], step["epoch"], step["token_check"]) for step in shown["steps"]]
        assert told == [(None, None, ""), (first.id, 2, "count")]
        assert key_client.get(f"{LIST}/{starter.id}").json()["parent"] is None

    def test_it_shows_at_most_200_steps(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        for index in range(201):
            StepFactory.create(trajectory=trajectory, index=index)
        shown = key_client.get(url).json()
        assert len(shown["steps"]) == 200
        assert shown["next_after"] == 199
        assert len(key_client.get(f"{url}/steps", {"after": 199}).json()["items"]) == 1


class TestSteps:
    def test_it_shows_messages(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        StepFactory.create(trajectory=trajectory, index=0)
        (step,) = key_client.get(f"{url}/steps").json()["items"]
        assert step["messages"] == [{"role": "user", "content": "hello"}]
        assert step["answer"] == {"role": "assistant", "content": "hi"}
        assert "prompt_token_ids" not in step

    def test_it_shows_tokens_when_asked(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        StepFactory.create(trajectory=trajectory, index=0)
        (step,) = key_client.get(f"{url}/steps", {"tokens": "1"}).json()["items"]
        assert step["prompt_token_ids"] == [1, 2, 3]
        assert step["completion_token_ids"] == [4, 5]
        assert step["logprobs"] == [-0.5, -0.5]

    def test_it_pages(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        for index in range(5):
            StepFactory.create(trajectory=trajectory, index=index)
        first = key_client.get(f"{url}/steps", {"limit": 2}).json()
        assert ([step["index"] for step in first["items"]], first["next_after"]) == ([0, 1], 1)
        last = key_client.get(f"{url}/steps", {"limit": 2, "after": 3}).json()
        assert ([step["index"] for step in last["items"]], last["next_after"]) == ([4], None)

    def test_it_refuses_bad_queries(self, key_client: APIClient, url: str) -> None:
        assert key_client.get(f"{url}/steps", {"after": "x"}).json()["field"] == "after"
        assert key_client.get(f"{url}/steps", {"token": "1"}).json()["field"] == "token"


class TestComplete:
    def test_it_works_and_twice_is_fine(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        first = key_client.post(f"{url}/complete")
        assert (first.status_code, first.json()["state"]) == (200, "complete")
        again = key_client.post(f"{url}/complete")
        assert again.status_code == 200
        assert again.json()["completed_at"] == first.json()["completed_at"]

    def test_calls_that_came_before_are_in_the_answer(
        self, key_client: APIClient, key: ApiKey, trajectory: Trajectory, url: str
    ) -> None:
        ExchangeFactory.create(key=key, trajectory_id=trajectory.id)
        assert key_client.post(f"{url}/complete").json()["n_steps"] == 1
        assert fold_pending() == 0


class TestExclusion:
    def test_it_works_both_ways(self, key_client: APIClient, trajectory: Trajectory, url: str) -> None:
        assert key_client.post(f"{url}/exclusion", {"excluded": True}).json()["is_excluded"] is True
        trajectory.refresh_from_db()
        assert trajectory.is_excluded
        assert key_client.post(f"{url}/exclusion", {"excluded": False}).json()["is_excluded"] is False

    @pytest.mark.parametrize("body", [{}, {"excluded": "perhaps"}, {"excluded": None}, {"excluded": True, "why": "x"}])
    def test_it_refuses_a_bad_body(self, key_client: APIClient, url: str, body: dict[str, Any]) -> None:
        assert key_client.post(f"{url}/exclusion", body).status_code == 400


ONE: list[tuple[str, str, dict[str, Any] | None]] = [
    ("get", "", None),
    ("get", "/steps", None),
    ("post", "/complete", None),
    ("post", "/exclusion", {"excluded": True}),
    ("get", "/labels", None),
    ("post", "/labels", {"value": 1}),
]


@pytest.mark.parametrize(("method", "path", "body"), ONE)
class TestEveryAddressOfOne:
    def test_it_works_for_a_key(self, key_client: APIClient, url: str, method: str, path: str, body: Any) -> None:
        assert getattr(key_client, method)(url + path, body).status_code in {200, 201}

    def test_it_needs_a_key(self, anonymous_client: APIClient, url: str, method: str, path: str, body: Any) -> None:
        answer = getattr(anonymous_client, method)(url + path, body)
        assert answer.status_code == 401
        assert answer["Content-Type"] == "application/problem+json"

    def test_it_refuses_a_wrong_key(
        self, anonymous_client: APIClient, url: str, method: str, path: str, body: Any
    ) -> None:
        anonymous_client.credentials(HTTP_X_API_KEY="claw-wrong")
        assert getattr(anonymous_client, method)(url + path, body).status_code == 401

    def test_it_hides_from_another_team(
        self,
        other_client: APIClient,
        client_of: Login,
        stranger: User,
        url: str,
        method: str,
        path: str,
        body: Any,
    ) -> None:
        assert getattr(other_client, method)(url + path, body).status_code == 404
        assert getattr(client_of(stranger), method)(url + path, body).status_code == 404

    @pytest.mark.parametrize("missing", [new_id("traj"), "traj_x", "%00", "a" * 300, "traj_\ud7ff"])
    def test_a_missing_id_is_404(self, key_client: APIClient, method: str, path: str, body: Any, missing: str) -> None:
        answer = getattr(key_client, method)(f"{LIST}/{missing}{path}", body)
        assert answer.status_code == 404
        assert answer.json()["code"] == "not_found"

    def test_a_viewer_may_only_look(
        self, client_of: Login, viewer: User, url: str, method: str, path: str, body: Any
    ) -> None:
        answer = getattr(client_of(viewer), method)(url + path, body)
        assert answer.status_code == (200 if method == "get" else 403)

    def test_the_wrong_method_is_405(self, key_client: APIClient, url: str, method: str, path: str, body: Any) -> None:
        answer = key_client.delete(url + path)
        assert answer.status_code == 405
        assert answer.json()["code"] == "method_not_allowed"


def test_the_wrong_method_on_the_list_is_405(key_client: APIClient) -> None:
    assert key_client.put(LIST, {}).status_code == 405


def test_a_switched_off_key_is_refused(key_client: APIClient, key: ApiKey, project: Project) -> None:
    assert key_client.get(LIST).status_code == 200
    ApiKey.objects.update(disabled_at=key.created_at)
    assert key_client.get(LIST).status_code == 401
