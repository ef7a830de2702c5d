"""The reference system's faults at the door, one test each or more; docs/agents/claw-r1.md has the table."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pytest_django.fixtures import Settings

from apps.registry.models import AliasName, Version
from apps.trajectories.models import Exchange, Step, Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.clawr1_clients import play_white_box
from tests.apps.gateway.conftest import GatewayServer, chat
from tests.factories.registry import VersionFactory
from tests.fakes.engine import END_TOKEN
from tests.fakes.token_engine import MAX_MODEL_LEN, Completion, TokenEngine


@pytest.fixture
def engine() -> Iterator[TokenEngine]:
    with TokenEngine() as engine:
        yield engine


@pytest.fixture
def spool_dir(settings: Settings, tmp_path: Path) -> Path:
    """The data directory, and Claw-R1's paths opened for the project `shop`."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path, "clawr1_project": "shop"})
    return tmp_path / "spool"


ENDINGS = [
    Completion([21, 22, END_TOKEN], [-0.5, -0.25, -0.125], text="hi"),
    Completion([21, 22], [-0.5, -0.25], text="hi", finish_reason="length"),
    Completion([21, 99], [-0.5, -0.25], text="h", finish_reason="stop", stop_reason=99),
    Completion([21, 22, 23], [-0.5, -0.25, -1.0], text="h", finish_reason="stop", stop_reason="i"),
]


@pytest.mark.parametrize("path", ["/v1/generate", "/generate"])
@pytest.mark.parametrize("completion", ENDINGS)
def test_fault_01_every_sampled_token_has_its_log_prob_the_end_token_too(
    http: httpx.Client,
    engine: TokenEngine,
    path: str,
    completion: Completion,
) -> None:
    engine.completions = [completion]
    answer = http.post(path, json={"prompt_ids": [5, 6]}).json()
    assert answer["token_ids"] == completion.token_ids
    assert answer["log_probs"] == completion.logprobs


@pytest.mark.parametrize("finish_reason", ["stop", "length"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_fault_01_chats_keep_the_end_token_too(
    http: httpx.Client,
    engine: TokenEngine,
    finish_reason: str,
    is_streamed: bool,
) -> None:
    engine.script.finish_reason = finish_reason
    assert http.post("/v1/chat/completions", json=chat(stream=is_streamed)).status_code == 200
    fold_pending()
    step = Step.objects.get()
    sampled = engine.calls[0].choices[0]
    assert (step.n_completion_tokens, len(bytes(step.logprobs)) // 4) == (len(sampled.token_ids),) * 2
    assert sampled.token_ids[-1] == END_TOKEN


def test_fault_06_a_static_url_and_a_key_are_enough(http: httpx.Client, version: Version) -> None:
    """Two conversations, nothing registered: two trajectories that share no group, each with the weights that spoke."""
    for question in ("one", "two"):
        messages = [{"role": "user", "content": question}]
        assert http.post("/v1/chat/completions", json=chat(messages=messages)).status_code == 200
    fold_pending()
    assert [row.group for row in Trajectory.objects.all()] == ["", ""]
    assert {step.version_id for step in Step.objects.all()} == {version.id}


def test_fault_06_sessions_without_a_prompt_share_no_group(gateway: GatewayServer) -> None:
    for _ in range(2):
        opened = httpx.post(f"{gateway.url}/init_trajectory", trust_env=False).json()
        answer = httpx.post(
            f"{opened['base_url']}/chat/completions", json=chat(model="default"), trust_env=False, timeout=30
        )
        assert answer.status_code == 200
    fold_pending()
    assert [(row.group, row.metadata, row.n_steps) for row in Trajectory.objects.all()] == [("", {}, 1)] * 2


def test_fault_06_the_version_is_the_serving_sides_word(gateway: GatewayServer, version: Version) -> None:
    """The flow says policy_version 0, as all of them do, while v5 speaks."""
    newer = VersionFactory.create(policy=version.policy, number=5, engine_name="tiny")
    version.policy.aliases.filter(name=AliasName.LIVE).update(version=newer)
    httpx.post(f"{gateway.url}/init_trajectory", trust_env=False)
    (step,) = play_white_box(gateway.url, uid="u", prompt_uid="p", n_turns=1)
    spoke = Exchange.objects.get(dialect="generate").version_id
    assert step["policy_version"] == 0
    assert Step.objects.get().version_id == spoke


def test_fault_09_a_prompt_that_is_too_long_is_refused_and_never_cut(
    http: httpx.Client,
    engine: TokenEngine,
) -> None:
    prompt = [1] * (MAX_MODEL_LEN + 1)
    for path in ("/v1/generate", "/generate"):
        answer = http.post(path, json={"prompt_ids": prompt})
        assert (answer.status_code, "maximum context length" in answer.text) == (400, True)
    assert all(asked["prompt"] == prompt for asked in engine.asked)
    long = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "x" * 30_000}]
    answer = http.post("/v1/chat/completions", json=chat(messages=long))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_fault_10_closing_a_val_session_without_its_channel_completes_it(gateway: GatewayServer) -> None:
    opened = httpx.post(f"{gateway.url}/init_trajectory", trust_env=False).json()
    base_url = opened["base_url"]
    httpx.post(f"{base_url}/register_trajectory", json={"channel": "val"}, trust_env=False).raise_for_status()
    assert httpx.post(f"{base_url}/complete_trajectory", trust_env=False).json() == {"status": "ok"}
    trajectory = Trajectory.objects.get()
    assert (trajectory.channel, trajectory.state) == ("val", TrajectoryState.COMPLETE)


def test_fault_10_what_was_for_validation_never_becomes_training_data(gateway: GatewayServer) -> None:
    base_url = httpx.post(f"{gateway.url}/init_trajectory", trust_env=False).json()["base_url"]
    httpx.post(f"{base_url}/register_trajectory", json={"channel": "val"}, trust_env=False).raise_for_status()
    answer = httpx.post(f"{base_url}/complete_trajectory", json={"channel": "train"}, trust_env=False)
    assert (answer.status_code, "registered in the channel val" in answer.text) == (409, True)


@pytest.mark.parametrize("address", ["/unknown/1/v1/complete_trajectory", "/complete_trajectory/unknown"])
def test_fault_10_an_unknown_trajectory_is_not_ok(gateway: GatewayServer, address: str) -> None:
    answer = httpx.post(gateway.url + address, json={"reward": 1}, trust_env=False)
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is no trajectory 'unknown'"})
