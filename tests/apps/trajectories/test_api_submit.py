"""Submitting steps over REST: checked, idempotent, whole or not at all, and as trainable as captured ones."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, Project, User
from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.ids import new_id
from apps.feedback.models import Label, Source
from apps.registry.models import Policy, Version
from apps.trajectories.models import Exchange, Step, Trajectory, TrajectoryState
from apps.trajectories.trie import load_steps
from tests.factories.registry import PolicyFactory, VersionFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
TURNS = [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6]), ([1, 2, 3, 4, 5, 6, 7], [8, 2])]


@pytest.fixture
def policy(project: Project) -> Policy:
    return PolicyFactory.create(project=project, slug="otter")


@pytest.fixture
def version(policy: Policy) -> Version:
    return VersionFactory.create(policy=policy)


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent)


@pytest.fixture
def url(trajectory: Trajectory) -> str:
    return f"/api/v1/trajectories/{trajectory.id}/steps"


def step(prompt: Sequence[int] = (1, 2), response: Sequence[int] = (3, 4), **fields: Any) -> dict[str, Any]:
    return {"prompt_ids": prompt, "response_ids": response, "log_probs": [-0.5] * len(response), **fields}


def turns(**fields: Any) -> dict[str, Any]:
    """A conversation of three turns, each named by its place."""
    return {
        "steps": [
            step(prompt, response, client_step_id=f"turn-{place}", **fields)
            for place, (prompt, response) in enumerate(TURNS)
        ]
    }


def generated(key: ApiKey, version: Version, **fields: Any) -> Exchange:
    """A call of the token door as the gateway writes it: no messages, and no trajectory unless one is named."""
    return ExchangeFactory.create(
        key=key,
        dialect="generate",
        version_id=version.id,
        request=b"{}",
        response=b"{}",
        chat_request=b'{"messages": []}',
        chat_response=json.dumps(
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
        ).encode(),
        prompt_ids=[1, 2],
        completions=[[3, 4]],
        token_logprobs=[[-0.25, -0.75]],
        sampling=b'{"temperature": 0.7}',
        **fields,
    )


class TestItWorks:
    def test_every_token_comes_out_again(
        self, key_client: APIClient, url: str, trajectory: Trajectory, version: Version
    ) -> None:
        answer = key_client.post(url, turns(version="v0"))
        assert answer.status_code == 201
        assert answer.json()["n_new"] == 3
        views = load_steps(trajectory)
        assert [(view.prompt_ids, view.completion_ids) for view in views] == TURNS
        assert [view.logprobs for view in views] == [[-0.5] * len(response) for _, response in TURNS]
        assert [row["id"] for row in answer.json()["steps"]] == [view.row.id for view in views]
        assert {view.row.version_id for view in views} == {version.id}

    def test_turns_share_what_they_have_in_common(
        self, key_client: APIClient, url: str, trajectory: Trajectory
    ) -> None:
        key_client.post(url, turns())
        first, second, third = Step.objects.filter(trajectory=trajectory)
        assert (second.parent, second.shared_tokens, bytes(second.tail_token_ids)) == (first, 4, pack_ids([5]))
        assert (third.parent, third.shared_tokens) == (second, 6)

    def test_steps_sent_one_by_one_make_the_same_trie(
        self, key_client: APIClient, url: str, trajectory: Trajectory
    ) -> None:
        for body in turns()["steps"]:
            assert key_client.post(url, {"steps": [body]}).status_code == 201
        rows = list(Step.objects.filter(trajectory=trajectory))
        assert [row.index for row in rows] == [0, 1, 2]
        assert [row.parent_id for row in rows] == [None, rows[0].id, rows[1].id]

    def test_the_trajectorys_sums_follow(self, key_client: APIClient, url: str, trajectory: Trajectory) -> None:
        key_client.post(url, turns())
        before = trajectory.last_step_at
        trajectory.refresh_from_db()
        assert (trajectory.n_steps, trajectory.n_prompt_tokens, trajectory.n_completion_tokens) == (3, 14, 5)
        assert trajectory.last_step_at > before

    def test_what_the_maker_knows_is_kept(self, key_client: APIClient, url: str, version: Version) -> None:
        body = step(
            version="otter@v0",
            temperature=0.8,
            top_p=0.9,
            top_k=40,
            finish_reason="length",
            text=" four",
            metadata={"tool": "sum"},
        )
        key_client.post(url, {"steps": [body]})
        row = Step.objects.get()
        assert (row.temperature, row.top_p, row.top_k, row.finish_reason) == (0.8, 0.9, 40, "length")
        assert row.metadata == {"tool": "sum"}
        assert json.loads(bytes(row.answer)) == {"role": "assistant", "content": " four"}
        (shown,) = key_client.get(url, {"tokens": "1"}).json()["items"]
        assert (shown["prompt_token_ids"], shown["metadata"]) == ([1, 2], {"tool": "sum"})

    @pytest.mark.parametrize("name", ["v0", "otter@v0", "0", "id"])
    def test_a_version_has_several_names(self, key_client: APIClient, url: str, version: Version, name: str) -> None:
        answer = key_client.post(url, {"steps": [step(version=version.id if name == "id" else name)]})
        assert answer.json()["steps"][0]["version"] == version.id

    def test_without_log_probs_a_step_is_kept_but_not_exact(self, key_client: APIClient, url: str) -> None:
        body = step()
        del body["log_probs"]
        assert key_client.post(url, {"steps": [body]}).json()["steps"][0]["is_exact"] is False

    def test_a_thousand_steps_cost_a_constant_number_of_queries(
        self, key_client: APIClient, url: str, trajectory: Trajectory
    ) -> None:
        def post(n_steps: int, name: str) -> int:
            bodies = [step([1, *range(n + 2)], client_step_id=f"{name}{n}", reward=0.5) for n in range(n_steps)]
            with CaptureQueriesContext(
                connection,
            ) as queries:
                assert key_client.post(url, {"steps": bodies}).status_code == 201
            return len(queries)

        post(1, "warm")
        few, many = post(2, "few"), post(400, "many")
        assert many == few
        assert trajectory.steps.count() == 403

    def test_a_body_far_larger_than_a_form_is_taken(self, key_client: APIClient, url: str) -> None:
        bodies = [step(list(range(10_000, 60_000)), client_step_id=str(n)) for n in range(10)]
        answer = key_client.post(url, {"steps": bodies})
        assert answer.status_code == 201, answer.content[:200]
        assert Step.objects.filter(shared_tokens=50_000).count() == 0  # repeated prompts are siblings


class TestRewards:
    def test_a_reward_is_a_label_on_its_step(
        self, key_client: APIClient, url: str, trajectory: Trajectory, key: ApiKey
    ) -> None:
        bodies = turns()["steps"]
        bodies[2]["reward"] = 1
        answer = key_client.post(url, {"steps": bodies})
        assert answer.json()["reward"] == 1
        label = Label.objects.get()
        assert (label.source, label.key, label.value) == (Source.ENVIRONMENT, key, 1)
        assert [row.reward for row in trajectory.steps.all()] == [None, None, 1]  # nothing said is not zero
        trajectory.refresh_from_db()
        assert trajectory.reward == 1

    def test_saying_it_again_adds_no_label(self, key_client: APIClient, url: str) -> None:
        for _ in range(2):
            key_client.post(url, turns(reward=0.5))
        assert Label.objects.count() == 3

    def test_another_reward_supersedes(self, key_client: APIClient, url: str, trajectory: Trajectory) -> None:
        key_client.post(url, turns(reward=0.5))
        answer = key_client.post(url, turns(reward=-1))
        assert (answer.json()["n_new"], answer.json()["reward"]) == (0, -1)
        assert Label.objects.current().count() == 3

    def test_a_persons_word_counts_more(
        self, key_client: APIClient, url: str, client_of: Login, mate: User, trajectory: Trajectory
    ) -> None:
        (first,) = key_client.post(url, {"steps": [step(reward=-1, client_step_id="a")]}).json()["steps"]
        labels = f"/api/v1/trajectories/{trajectory.id}/labels"
        client_of(mate).post(labels, {"value": 1, "step": first["id"]})
        assert key_client.post(url, {"steps": [step(reward=-1, client_step_id="a")]}).json()["reward"] == 1


class TestAgain:
    def test_named_steps_are_added_once(self, key_client: APIClient, url: str, trajectory: Trajectory) -> None:
        first = key_client.post(url, turns()).json()
        again = key_client.post(url, turns()).json()
        assert again["n_new"] == 0
        assert [row["id"] for row in again["steps"]] == [row["id"] for row in first["steps"]]
        trajectory.refresh_from_db()
        assert trajectory.n_steps == 3

    def test_a_name_twice_in_one_call_is_one_step(self, key_client: APIClient, url: str) -> None:
        body = step(client_step_id="a")
        answer = key_client.post(url, {"steps": [body, body]}).json()
        assert (answer["n_new"], len({row["id"] for row in answer["steps"]})) == (1, 1)

    @pytest.mark.parametrize(("prompt", "response"), [([1, 2], [3, 5]), ([1], [2, 3, 4]), ([1, 2, 3], [4])])
    def test_a_name_for_other_tokens_is_a_conflict(
        self, key_client: APIClient, url: str, prompt: list[int], response: list[int]
    ) -> None:
        key_client.post(url, {"steps": [step(client_step_id="a")]})
        answer = key_client.post(url, {"steps": [step(), step(prompt, response, client_step_id="a")]})
        assert (answer.status_code, answer.json()["field"]) == (409, "steps[1].client_step_id")
        assert Step.objects.count() == 1  # nothing of the call was stored

    def test_other_trajectories_have_names_of_their_own(
        self, key_client: APIClient, url: str, trajectory: Trajectory
    ) -> None:
        other = TrajectoryFactory.create(agent=trajectory.agent)
        for address in (url, url.replace(trajectory.id, other.id)):
            assert key_client.post(address, turns()).json()["n_new"] == 3

    def test_a_complete_trajectory_takes_nothing_new(
        self, key_client: APIClient, url: str, trajectory: Trajectory
    ) -> None:
        key_client.post(url, turns())
        key_client.post(url.replace("/steps", "/complete"))
        assert key_client.post(url, turns()).json()["n_new"] == 0  # a client that missed our answer
        late = key_client.post(url, {"steps": [step()]})
        assert (late.status_code, late.json()["code"]) == (409, "conflict")
        assert trajectory.steps.count() == 3


class TestOwnGenerations:
    """Tokens that went through the token door are recognised."""

    def test_the_serving_sides_word_counts(
        self, key_client: APIClient, url: str, key: ApiKey, version: Version
    ) -> None:
        exchange = generated(key, version)
        key_client.post(url, {"steps": [step(temperature=1.0)]})
        row = Step.objects.get()
        assert (row.exchange_id, row.version_id, row.temperature) == (exchange.id, version.id, 0.7)
        assert bytes(row.logprobs) == pack_logprobs([-0.25, -0.75])
        assert (row.started_at, row.finish_reason) == (exchange.started_at, "stop")

    def test_each_call_is_one_step(
        self, key_client: APIClient, url: str, key: ApiKey, version: Version, trajectory: Trajectory
    ) -> None:
        calls = {generated(key, version).id for _ in range(2)}
        key_client.post(url, {"steps": [step(client_step_id=name) for name in "abc"]})
        assert {row.exchange_id for row in Step.objects.all()} > calls
        assert Step.objects.filter(version=None).count() == 1  # the third was not generated here

    def test_a_call_that_the_recorder_has_filed_is_not_filed_again(
        self, key_client: APIClient, url: str, key: ApiKey, version: Version, trajectory: Trajectory
    ) -> None:
        exchange = generated(key, version, trajectory_id=trajectory.id)
        row = StepFactory.create(
            trajectory=trajectory, index=0, exchange_id=exchange.id, prompt_ids=[1, 2], completion_ids=[3, 4]
        )
        for _ in range(2):
            answer = key_client.post(url, {"steps": [step(client_step_id="a", reward=1, metadata={"k": 1})]}).json()
            assert (answer["n_new"], answer["steps"][0]["id"]) == (0, row.id)
        row.refresh_from_db()
        assert (row.client_step_id, row.metadata, row.reward) == ("a", {"k": 1}, 1)

    def test_another_projects_calls_are_not_ours(
        self, key_client: APIClient, url: str, other_key: ApiKey, version: Version
    ) -> None:
        generated(other_key, version)
        key_client.post(url, {"steps": [step()]})
        assert Step.objects.get().version_id is None


class TestItRefuses:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"prompt_ids": []}, "prompt_ids"),
            ({"prompt_ids": None}, "prompt_ids"),
            ({"prompt_ids": "1 2"}, "prompt_ids"),
            ({"prompt_ids": [1, True]}, "prompt_ids"),
            ({"prompt_ids": [1.0]}, "prompt_ids"),
            ({"prompt_ids": [-1]}, "prompt_ids"),
            ({"prompt_ids": [2**31]}, "prompt_ids"),
            ({"response_ids": []}, "response_ids"),
            ({"response_ids": [[3]]}, "response_ids"),
            ({"log_probs": [-0.5]}, "log_probs"),
            ({"log_probs": []}, "log_probs"),
            ({"log_probs": [-0.5, 0.1]}, "log_probs"),
            ({"log_probs": [-0.5, "-0.5"]}, "log_probs"),
            ({"log_probs": [-0.5, None]}, "log_probs"),
            ({"log_probs": [-0.5, -1e300]}, "log_probs"),
            ({"reward": 1.5}, "reward"),
            ({"reward": "nan"}, "reward"),
            ({"reward": True}, "reward"),
            ({"version": "v7"}, "version"),
            ({"version": "elsewhere@v0"}, "version"),
            ({"version": new_id("ver")}, "version"),
            ({"temperature": -1}, "temperature"),
            ({"temperature": "inf"}, "temperature"),
            ({"top_p": 1.1}, "top_p"),
            ({"top_k": -2}, "top_k"),
            ({"metadata": ["x"]}, "metadata"),
            ({"metadata": {"a": "x" * 20_000}}, "metadata"),
            ({"client_step_id": "x" * 101}, "client_step_id"),
            ({"is_last": True}, "is_last"),
        ],
    )
    def test_what_is_no_step_by_its_place_and_field(
        self, key_client: APIClient, url: str, version: Version, change: dict[str, Any], field: str
    ) -> None:
        answer = key_client.post(url, {"steps": [step(), {**step(), **change}]})
        assert (answer.status_code, answer.json()["field"]) == (400, f"steps[1].{field}"), answer.content
        assert f"steps[1].{field}" in answer.json()["detail"]
        assert not Step.objects.exists()

    @pytest.mark.parametrize("name", ["prompt_ids", "response_ids"])
    def test_a_step_without_its_tokens(self, key_client: APIClient, url: str, name: str) -> None:
        body = step()
        del body[name]
        assert key_client.post(url, {"steps": [body]}).json()["field"] == f"steps[0].{name}"

    @pytest.mark.parametrize(
        "data", ['{"steps": [{"log_probs": [NaN]}]}', '{"steps": [{"log_probs": [-Infinity]}]}', "["]
    )
    def test_what_is_no_json(self, key_client: APIClient, url: str, data: str) -> None:
        assert key_client.post(url, data, content_type="application/json").json()["code"] == "parse_error"

    @pytest.mark.parametrize("body", [{}, {"steps": []}, {"steps": {}}, {"steps": [1]}, {"steps": None}, {"step": 1}])
    def test_a_bad_body(self, key_client: APIClient, url: str, body: dict[str, Any]) -> None:
        assert key_client.post(url, body).status_code == 400

    def test_too_many_at_once(self, key_client: APIClient, url: str) -> None:
        answer = key_client.post(url, {"steps": [step()] * 2001})
        assert (answer.status_code, answer.json()["field"]) == (400, "steps")

    def test_a_body_without_end(self, key_client: APIClient, url: str) -> None:
        data = b'{"steps": [' + b" " * (32 * 1024 * 1024) + b"]}"
        answer = key_client.post(url, data, content_type="application/json")
        assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")

    def test_ids_that_the_model_does_not_have(
        self, key_client: APIClient, url: str, policy: Policy, tmp_path: Path
    ) -> None:
        (tmp_path / "config.json").write_text('{"vocab_size": 4}')
        Policy.objects.update(base_model_dir=str(tmp_path))
        answer = key_client.post(url, {"steps": [step()]})
        assert (answer.status_code, answer.json()["field"]) == (400, "steps[0].response_ids")
        assert "end at 3" in answer.json()["detail"]

    def test_another_teams_version(self, key_client: APIClient, url: str, version: Version) -> None:
        theirs = VersionFactory.create()
        assert key_client.post(url, {"steps": [step(version=theirs.id)]}).json()["field"] == "steps[0].version"

    def test_no_key(self, anonymous_client: APIClient, url: str) -> None:
        assert anonymous_client.post(url, turns()).status_code == 401

    def test_a_viewer(self, client_of: Login, viewer: User, url: str) -> None:
        assert client_of(viewer).post(url, turns()).status_code == 403

    def test_another_team(self, other_client: APIClient, client_of: Login, stranger: User, url: str) -> None:
        assert other_client.post(url, turns()).status_code == 404
        assert client_of(stranger).post(url, turns()).status_code == 404

    @pytest.mark.parametrize("missing", [new_id("traj"), "traj_x", "%00"])
    def test_a_trajectory_that_is_not_there(self, key_client: APIClient, missing: str) -> None:
        assert key_client.post(f"/api/v1/trajectories/{missing}/steps", turns()).status_code == 404

    def test_the_wrong_method(self, key_client: APIClient, url: str) -> None:
        assert key_client.put(url, turns()).status_code == 405


def test_a_person_may_submit_too(client_of: Login, mate: User, url: str, trajectory: Trajectory) -> None:
    assert client_of(mate).post(url, turns(reward=1)).status_code == 201
    assert Label.objects.filter(author=mate, source=Source.HUMAN).count() == 3
    assert trajectory.state == TrajectoryState.OPEN
