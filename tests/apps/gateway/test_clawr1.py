"""Claw-R1's own paths: closed unless opened, and then what its clients do lands in the pool as ours does."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, ApiKey, Project, User
from apps.accounts.services import disable_key
from apps.core.ids import is_id, new_id
from apps.feedback.graders.models import Grader, GraderVersion
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.models import Label, Source
from apps.gateway.clawr1 import http as door
from apps.registry.models import Engine, EngineState, Version
from apps.trajectories.models import Exchange, Step, Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_steps
from tests.apps.gateway.clawr1_clients import play_black_box, play_white_box
from tests.apps.gateway.conftest import GatewayServer, chat, wait_until
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.token_engine import MAX_MODEL_LEN, Completion, TokenEngine

CALL = '<tool_call>{"name": "check_answer", "arguments": {"answer": "42"}}</tool_call>'
STEP = {
    "prompt_ids": [1, 2],
    "response_ids": [3],
    "rollout_log_probs": [-0.5],
    "trajectory_uid": "made-up",
    "prompt_uid": "p",
}


@pytest.fixture
def engine() -> Iterator[TokenEngine]:
    with TokenEngine() as engine:
        yield engine


@pytest.fixture
def spool_dir(settings: Settings, tmp_path: Path) -> Path:
    """The data directory, and the door opened for the project `shop`."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path, "clawr1_project": "shop"})
    return tmp_path / "spool"


@pytest.fixture
def client(gateway: GatewayServer) -> Iterator[httpx.Client]:
    """Calls without any key, as Claw-R1's clients do."""
    with httpx.Client(base_url=gateway.url, timeout=30, trust_env=False) as client:
        yield client


def open_base(client: httpx.Client, *, prompt_uid: str = "1") -> tuple[str, str]:
    """Return a new trajectory's uid and the path of its base."""
    opened = client.post("/init_trajectory").json()
    return opened["trajectory_uid"], f"/{opened['trajectory_uid']}/{prompt_uid}/v1"


def detail_of(response: httpx.Response, *, status: int) -> str:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"detail"}
    return str(response.json()["detail"])


class TestUnmodifiedClients:
    def test_a_black_box_agent_lands_in_the_pool(
        self, gateway: GatewayServer, engine: TokenEngine, project: Project, version: Version
    ) -> None:
        engine.script.pieces = [CALL]
        uid = asyncio.run(play_black_box(gateway.url, prompt_uid="gsm8k-7", channel="train", reward=1.0))

        trajectory = Trajectory.objects.select_related("agent").get(pk=uid)
        assert (trajectory.project_id, trajectory.agent.slug) == (project.id, "claw-r1")
        assert (trajectory.group, trajectory.channel, trajectory.state) == ("gsm8k-7", "train", "complete")
        assert trajectory.metadata["reward_model"] == {"ground_truth": "42"}
        assert (trajectory.reward, trajectory.n_steps) == (1.0, 3)
        steps = list(Step.objects.filter(trajectory=trajectory))
        assert [step.parent_id for step in steps] == [None, steps[0].id, steps[1].id]
        assert all(step.is_exact for step in steps)
        assert {step.version_id for step in steps} == {version.id}

    def test_the_agent_gets_its_tool_calls_as_text(self, gateway: GatewayServer, engine: TokenEngine) -> None:
        asyncio.run(play_black_box(gateway.url, prompt_uid="1", channel="train", reward=None))
        asked = engine.calls[0].body
        assert asked["tool_choice"] == "none"  # vLLM then keeps the tools in the prompt and calls in the text
        assert [tool["function"]["name"] for tool in asked["tools"]] == ["check_answer"]

    def test_a_white_box_flow_lands_in_the_pool(
        self, gateway: GatewayServer, engine: TokenEngine, version: Version
    ) -> None:
        engine.completions = [Completion([8, 9], [-0.5, -1.0]), Completion([11, 2], [-0.25, -0.125])]
        submitted = play_white_box(gateway.url, uid="5f1c", prompt_uid="gsm8k-7")

        fold_pending()
        trajectory = Trajectory.objects.get()
        views = load_steps(trajectory)
        assert [view.prompt_ids for view in views] == [step["prompt_ids"] for step in submitted]
        assert [view.completion_ids for view in views] == [[8, 9], [11, 2]]
        assert [view.logprobs for view in views] == [[-0.5, -1.0], [-0.25, -0.125]]
        assert (trajectory.group, trajectory.state, trajectory.reward) == ("gsm8k-7", "complete", 1.0)
        assert [view.row.reward for view in views] == [None, 1.0]
        assert {(view.row.version_id, view.row.temperature) for view in views} == {(version.id, 0.8)}
        assert views[1].row.parent_id == views[0].row.id

    def test_a_step_sent_again_is_one_step(self, client: httpx.Client) -> None:
        for _ in range(2):
            assert client.post("/submit_steps", json={"steps": [STEP]}).json() == {"accepted": 1}
        assert Step.objects.count() == 1

    def test_a_static_address_is_enough(self, client: httpx.Client) -> None:
        """LangChain's example: a base URL that somebody made up, without /v1, and nothing registered."""
        for _ in range(2):
            answer = client.post("/traj-123/prompt-456/chat/completions", json=chat(model="default"))
            assert answer.status_code == 200
        fold_pending()
        trajectory = Trajectory.objects.get()
        assert (trajectory.n_steps, trajectory.group) == (2, "prompt-456")

    @pytest.mark.parametrize("prefix", ["", "/v1", "/v1/v1"])
    @pytest.mark.parametrize("verb", ["complete_trajectory", "trajectory/complete"])
    def test_clients_of_every_age_find_the_end(self, client: httpx.Client, prefix: str, verb: str) -> None:
        uid, _ = open_base(client)
        assert client.post(f"/{uid}/1{prefix}/{verb}").json() == {"status": "ok"}
        assert Trajectory.objects.get().state == TrajectoryState.COMPLETE

    def test_the_oldest_addresses_work_too(self, client: httpx.Client) -> None:
        body = {"trajectory_uid": "abc", "channel": "val", "metadata": {"k": 1}}
        assert client.post("/register_trajectory", json=body).status_code == 200
        assert client.post("/complete_trajectory/abc", json={"reward": 0.5, "channel": "val"}).status_code == 200
        trajectory = Trajectory.objects.get()
        assert (trajectory.channel, trajectory.metadata, trajectory.reward) == ("val", {"k": 1}, 0.5)


class TestEveryAddress:
    @pytest.mark.parametrize(
        ("path", "body", "status"),
        [
            ("/init_trajectory", {}, 200),
            ("{base}/register_trajectory", {"channel": "train"}, 200),
            ("{base}/register_trajectory", {"channel": "none"}, 400),
            ("{base}/complete_trajectory", {"reward": 2}, 400),
            ("/traj_00000000000000000000000000/1/v1/chat/completions", chat(model="default"), 404),
            ("/submit_steps", {"steps": [STEP]}, 200),
            ("/submit_steps", {"steps": []}, 400),
            ("/compute_reward", {"prompt_ids": [1], "response_ids": [2]}, 501),
        ],
    )
    def test_answers_have_a_name(self, client: httpx.Client, path: str, body: Any, status: int) -> None:
        _, base = open_base(client)
        answer = client.post(path.format(base=base), json=body)

        assert answer.status_code == status, answer.text
        assert is_id(answer.headers["x-request-id"], "req")
        assert answer.headers["request-id"] == answer.headers["x-request-id"]

    @pytest.mark.parametrize("body", [b"[]", b"5", b"null", b'"x"', b"{", b"\xff"])
    @pytest.mark.parametrize("path", ["{base}/register_trajectory", "{base}/complete_trajectory", "/submit_steps"])
    def test_they_want_an_object(self, client: httpx.Client, path: str, body: bytes) -> None:
        _, base = open_base(client)
        detail = detail_of(client.post(path.format(base=base), content=body), status=400)
        assert detail.startswith(("the body must be a JSON object", "the body is not JSON"))

    def test_halves_of_characters_are_mended(self, client: httpx.Client) -> None:
        uid, base = open_base(client)
        said = client.post(f"{base}/register_trajectory", content=b'{"metadata": {"note": "cut \\ud83d"}}')

        assert said.status_code == 200, said.text
        assert Trajectory.objects.get(pk=uid).metadata["note"] == "cut \ufffd"


class TestInit:
    def test_the_base_url_is_where_the_client_called(self, client: httpx.Client, gateway: GatewayServer) -> None:
        opened = client.post("/init_trajectory", json={}).json()
        trajectory = Trajectory.objects.get()
        assert opened == {"trajectory_uid": trajectory.id, "base_url": f"{gateway.url}/{trajectory.id}/1/v1"}

    def test_a_public_address_wins(self, settings: Settings, client: httpx.Client) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"base_url": "https://claw.example.org/"})
        uid = (opened := client.post("/init_trajectory").json())["trajectory_uid"]
        assert opened["base_url"] == f"https://claw.example.org/{uid}/1/v1"


class TestRegister:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"channel": "test"}, "channel"),
            ({"metadata": []}, "metadata"),
            ({"metadata": {"a": "x" * 20_000}}, "metadata"),
            ({"reward": 1}, "reward"),
        ],
    )
    def test_it_refuses_by_name(self, client: httpx.Client, body: dict[str, Any], field: str) -> None:
        _, base = open_base(client)
        assert field in detail_of(client.post(f"{base}/register_trajectory", json=body), status=400)

    @pytest.mark.parametrize("content", [b"[", b"[]", b'"x"', b'{"metadata": {"a": "\\u0000"}}'])
    def test_it_refuses_a_bad_body(self, client: httpx.Client, content: bytes) -> None:
        _, base = open_base(client)
        detail_of(client.post(f"{base}/register_trajectory", content=content), status=400)

    def test_it_needs_a_trajectory(self, client: httpx.Client) -> None:
        assert "trajectory_uid" in detail_of(client.post("/register_trajectory", json={}), status=400)

    def test_a_complete_trajectory_stays_as_it_was(self, client: httpx.Client) -> None:
        _, base = open_base(client)
        client.post(f"{base}/complete_trajectory")
        detail_of(client.post(f"{base}/register_trajectory", json={"channel": "val"}), status=409)

    def test_a_trajectory_has_one_group(self, client: httpx.Client) -> None:
        uid, base = open_base(client, prompt_uid="a")
        assert client.post(f"{base}/register_trajectory").status_code == 200
        other = client.post(f"/{uid}/b/v1/chat/completions", json=chat(model="default"))
        assert other.json()["error"]["code"] == "conflict"  # a model call's errors are OpenAI's

    def test_a_group_name_fits_its_column(self, client: httpx.Client) -> None:
        uid, _ = open_base(client)
        assert "prompt_uid" in detail_of(client.post(f"/{uid}/{'x' * 101}/v1/register_trajectory"), status=400)


class TestComplete:
    def test_saying_it_twice_is_fine(self, client: httpx.Client) -> None:
        _, base = open_base(client)
        for _ in range(2):
            assert client.post(f"{base}/complete_trajectory", json={"reward": 0.5}).json() == {"status": "ok"}
        label = Label.objects.get()
        assert (label.value, label.source) == (0.5, Source.ENVIRONMENT)

    def test_another_reward_afterwards_is_a_conflict(self, client: httpx.Client) -> None:
        _, base = open_base(client)
        client.post(f"{base}/complete_trajectory", json={"reward": 0.5})
        detail_of(client.post(f"{base}/complete_trajectory", json={"reward": 1.0}), status=409)

    @pytest.mark.parametrize("reward", [1.5, -2, "much", [1]])
    def test_it_refuses_a_reward_that_is_none(self, client: httpx.Client, reward: Any) -> None:
        _, base = open_base(client)
        assert "reward" in detail_of(client.post(f"{base}/complete_trajectory", json={"reward": reward}), status=400)

    def test_another_projects_trajectory_is_not_there(self, client: httpx.Client, other_key: ApiKey) -> None:
        theirs = TrajectoryFactory.create(agent=other_key.agent)
        detail_of(client.post(f"/{theirs.id}/1/v1/complete_trajectory"), status=404)


class TestSubmit:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"prompt_ids": []}, "prompt_ids"),
            ({"prompt_ids": [2**31]}, "prompt_ids"),
            ({"response_ids": ["a"]}, "response_ids"),
            ({"rollout_log_probs": [-0.5, -0.5]}, "log_probs"),
            ({"rollout_log_probs": [0.5]}, "rollout_log_probs"),
            ({"reward": 2}, "reward"),
            ({"trajectory_uid": ""}, "trajectory_uid"),
            ({"policy_version": 7}, "version"),
            ({"multi_modal_data": {"image": 1}}, "multi_modal_data"),
            ({"routed_experts": [[1]]}, "routed_experts"),
            ({"stepindex": 1}, "stepindex"),
        ],
    )
    def test_it_refuses_by_name_and_stores_nothing(
        self, client: httpx.Client, change: dict[str, Any], field: str
    ) -> None:
        other = {**STEP, "trajectory_uid": "another"}
        response = client.post("/submit_steps", json={"steps": [other, {**STEP, **change}]})
        assert field in detail_of(response, status=400)
        assert not Trajectory.objects.exists()

    @pytest.mark.parametrize("body", [{}, {"steps": []}, {"steps": {}}, []])
    def test_it_refuses_a_bad_body(self, client: httpx.Client, body: Any) -> None:
        detail_of(client.post("/submit_steps", json=body), status=400)

    def test_it_refuses_unknown_channels_and_mixed_ones(self, client: httpx.Client) -> None:
        assert "channel" in detail_of(client.post("/submit_steps?channel=x", json={"steps": [STEP]}), status=400)
        assert client.post("/submit_steps?channel=val", json={"steps": [STEP]}).status_code == 200
        again = {"steps": [{**STEP, "step_index": 1}]}
        detail_of(client.post("/submit_steps", json=again), status=409)
        assert Trajectory.objects.get().channel == "val"

    def test_steps_of_several_trajectories_come_together(self, client: httpx.Client) -> None:
        steps = [{**STEP, "trajectory_uid": uid, "is_last": True, "reward": 1} for uid in ("a", "b", "c")]
        assert client.post("/submit_steps", json={"steps": steps}).json() == {"accepted": 3}
        assert Trajectory.objects.filter(state=TrajectoryState.COMPLETE, reward=1, group="p").count() == 3

    def test_a_version_that_a_client_knows_is_kept(self, client: httpx.Client, version: Version) -> None:
        Version.objects.filter(pk=version.pk).update(number=3)
        client.post("/submit_steps", json={"steps": [{**STEP, "policy_version": 3}]})
        assert Step.objects.get().version_id == version.id


class TestGenerate:
    def test_it_answers_in_tokens(self, client: httpx.Client) -> None:
        answer = client.post("/generate", json={"prompt_ids": [5], "sampling_params": {"logprobs": True}}).json()
        assert (answer["token_ids"], answer["log_probs"]) == ([21, 22, 2], [-0.5, -1.25, -0.0625])
        assert answer["stop_reason"] == "stop"

    def test_it_refuses_in_its_clients_shape(self, client: httpx.Client) -> None:
        assert "prompt_ids" in detail_of(client.post("/generate", json={}), status=400)
        too_long = client.post("/generate", json={"prompt_ids": [1] * (MAX_MODEL_LEN + 1)})
        assert "maximum context length" in detail_of(too_long, status=400)


class TestComputeReward:
    def test_a_reward_that_was_given_is_answered(self, gateway: GatewayServer, client: httpx.Client) -> None:
        (first, last) = play_white_box(gateway.url, uid="u", prompt_uid="p", reward=0.5)
        answer = client.post("/compute_reward", json={**_tokens(last), "num_turns": 2, "dataset_fields": {"a": 1}})
        assert answer.json()["reward_score"] == 0.5
        step = Step.objects.get(index=1)
        assert answer.json()["reward_extra_info"] == {"step": step.id, "trajectory": step.trajectory_id}
        assert client.post("/compute_reward", json=_tokens(first)).json()["reward_score"] == 0.5  # the trajectory's

    def test_none_is_made_up(self, gateway: GatewayServer, client: httpx.Client) -> None:
        (step,) = play_white_box(gateway.url, uid="u", prompt_uid="p", n_turns=1, reward=None)
        for tokens in (_tokens(step), {"prompt_ids": [1], "response_ids": [2]}):
            reason = detail_of(client.post("/compute_reward", json=tokens), status=501)
            assert "submit_steps" in reason

    @pytest.fixture
    def rule(self, project: Project, owner: User, engine_row: Engine) -> GraderVersion:
        """GSM8K's: the last number of the answer is the right one."""
        Engine.objects.update(state=EngineState.UP)
        draft = VersionDraft(settings={"passed": 1, "failed": 0})
        caller = Caller(user=owner)
        version, _ = create_grader(caller=caller, project=project, name="gsm8k", kind="numeric", draft=draft)
        Grader.objects.update(live=version)
        return version

    @pytest.mark.parametrize(
        ("truth", "reward"),
        [({"ground_truth": "42"}, 1), ({"ground_truth": 42, "style": "rule"}, 1), ({"ground_truth": "41"}, 0)],
    )
    def test_a_rule_of_the_project_is_the_verifier(
        self, client: httpx.Client, engine: TokenEngine, rule: GraderVersion, truth: dict[str, Any], reward: float
    ) -> None:
        engine.spelled = "So it is 42<|im_end|>"
        fields = {"data_source": "openai/gsm8k", "reward_model": truth, "answer": "6 * 7 = 42 #### 42"}
        for task in (fields, {"dataset_fields": fields}):
            answer = client.post("/compute_reward", json={"prompt_ids": [1], "response_ids": [2, 3], **task}).json()
            assert answer["reward_score"] == reward
            assert answer["reward_extra_info"]["grader"] == "gsm8k@v1"
        assert not Label.objects.exists()

    def test_a_rule_without_the_right_answer_says_so(self, client: httpx.Client, rule: GraderVersion) -> None:
        reason = detail_of(client.post("/compute_reward", json={"prompt_ids": [1], "response_ids": [2]}), status=501)
        assert "no 'answer'" in reason

    def test_without_an_engine_nobody_can_read_the_tokens(self, client: httpx.Client, rule: GraderVersion) -> None:
        Engine.objects.update(state=EngineState.DOWN)
        answer = client.post("/compute_reward", json={"prompt_ids": [1], "response_ids": [2]})
        assert "read these tokens" in detail_of(answer, status=503)
        assert answer.headers["retry-after"]

    @pytest.mark.parametrize("body", [{}, {"response_ids": [1], "reward_model": "42"}, {"dataset_fields": []}])
    def test_it_refuses_a_bad_body(self, client: httpx.Client, body: dict[str, Any]) -> None:
        detail_of(client.post("/compute_reward", json={"prompt_ids": [1], **body}), status=400)


def _tokens(step: dict[str, Any]) -> dict[str, Any]:
    return {name: step[name] for name in ("prompt_ids", "response_ids")}


PATHS = [
    "/init_trajectory",
    "/register_trajectory",
    "/submit_steps",
    "/generate",
    "/compute_reward",
    "/complete_trajectory/x",
    "/x/1/v1/chat/completions",
    "/x/1/v1/register_trajectory",
    "/x/1/v1/complete_trajectory",
]


class TestWhoMayComeIn:
    @pytest.mark.parametrize("path", PATHS)
    def test_other_networks_are_refused(self, settings: Settings, world: None, path: str, project: Project) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"clawr1_networks": ("10.0.0.0/8", "::/128")})
        with GatewayServer() as server:
            response = httpx.post(server.url + path, json={}, trust_env=False)
        assert response.status_code == 403
        assert "CLAW_CLAWR1_NETWORKS" in response.text
        assert not Agent.objects.filter(slug="claw-r1").exists()

    @pytest.mark.parametrize("path", PATHS)
    def test_without_the_setting_there_is_no_door(self, settings: Settings, world: None, path: str) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"clawr1_project": ""})
        with GatewayServer() as server:
            response = httpx.post(server.url + path, json={}, trust_env=False)
        assert response.text == "rest"  # the rest of the platform, which knows no such page

    @pytest.mark.parametrize("path", PATHS)
    def test_the_wrong_method_is_405(self, client: httpx.Client, path: str) -> None:
        assert client.get(path).status_code == 405

    def test_a_project_that_is_not_there_is_said(self, settings: Settings, world: None) -> None:
        settings.CLAW = settings.CLAW.model_copy(update={"clawr1_project": "nowhere"})
        with GatewayServer() as server:
            response = httpx.post(f"{server.url}/init_trajectory", trust_env=False)
        assert "nowhere" in detail_of(response, status=503)
        assert int(response.headers["retry-after"]) > 0

    def test_all_clients_speak_as_one_agent_with_one_key(self, client: httpx.Client, project: Project) -> None:
        for _ in range(3):
            open_base(client)
        agent = Agent.objects.get(slug="claw-r1")
        assert (agent.project, agent.keys.count()) == (project, 1)

    def test_switching_the_key_off_closes_the_door(self, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door, "KEY_AGE_S", 0)
        open_base(client)
        disable_key(key=ApiKey.objects.select_related("agent__project__team").get(agent__slug="claw-r1"), actor="test")
        wait_until(lambda: client.post("/init_trajectory").status_code == 403, timeout_s=2)

    def test_our_own_addresses_stay_ours(self, http: httpx.Client, key: ApiKey) -> None:
        trajectory = TrajectoryFactory.create(agent=key.agent)
        assert http.post(f"/t/{trajectory.id}/v1/chat/completions", json=chat()).status_code == 200
        assert Exchange.objects.get().trajectory_id == trajectory.id
        http.headers.pop("authorization")
        assert http.post(f"/t/{trajectory.id}/v1/chat/completions", json=chat()).status_code == 401

    def test_a_made_up_uid_is_never_anothers_id(self, client: httpx.Client) -> None:
        detail_of(client.post(f"/{new_id('traj')}/1/v1/register_trajectory"), status=404)
        detail_of(client.post(f"/{'u' * 201}/1/v1/register_trajectory"), status=400)
