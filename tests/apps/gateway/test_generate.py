"""`POST /v1/generate`: exact ids and log-probs for every ending, what the engine is asked, what the pool keeps."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.ids import new_id
from apps.registry.models import Version
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_steps
from tests.apps.gateway.conftest import GatewayServer, only_exchange
from tests.factories.trajectories import TrajectoryFactory
from tests.fakes.engine import END_TOKEN
from tests.fakes.token_engine import MAX_MODEL_LEN, Completion, TokenEngine

PATH = "/v1/generate"
PROMPT = [5, 6, 7]


@pytest.fixture
def engine() -> Iterator[TokenEngine]:
    with TokenEngine() as engine:
        yield engine


def ask(http: httpx.Client, prompt: list[int] = PROMPT, *, path: str = PATH, **fields: Any) -> dict[str, Any]:
    response = http.post(path, json={"prompt_ids": prompt, **fields})
    assert response.status_code == 200, response.text
    return dict(response.json())


def assert_error(response: httpx.Response, *, status: int, code: str | None = None, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    return str(error["message"])


ENDINGS = [
    Completion(),
    Completion([21, 22], [-0.5, -0.25], finish_reason="length"),
    Completion([21, 99], [-0.5, -0.25], finish_reason="stop", stop_reason=99),
    Completion([21, 22, 23], [-0.5, -0.25, -3.0], text="Hel", finish_reason="stop", stop_reason="lo"),
    Completion([END_TOKEN], [-0.125], text=""),
    Completion([21], [-9999.0], finish_reason="abort"),
]


@pytest.mark.parametrize("completion", ENDINGS)
def test_ids_and_log_probs_are_the_engines_for_every_ending(
    http: httpx.Client, engine: TokenEngine, completion: Completion
) -> None:
    engine.completions = [completion]

    answer = ask(http)

    assert answer["token_ids"] == completion.token_ids
    assert answer["log_probs"] == completion.logprobs
    assert (answer["stop_reason"], answer["stopped_by"]) == (completion.finish_reason, completion.stop_reason)
    assert answer["text"] == completion.text
    exchange = only_exchange()
    assert exchange.is_exact
    assert bytes(exchange.prompt_token_ids or b"") == pack_ids(PROMPT)
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [pack_ids(completion.token_ids)]
    assert bytes(exchange.completion_logprobs[0]) == pack_logprobs([value or 0.0 for value in completion.logprobs])


def test_the_answer_says_which_weights_spoke_each_token(http: httpx.Client, version: Version) -> None:
    response = http.post(PATH, json={"prompt_token_ids": PROMPT})

    answer = response.json()
    assert answer["versions"] == [{"version": "otter@v0", "start": 0, "end": 3}]
    assert (answer["model"], answer["object"]) == ("default", "token_completion")
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert response.headers["x-claw-version"] == "otter@v0"
    exchange = only_exchange()
    assert exchange.id == response.headers["x-request-id"]
    assert (exchange.dialect, exchange.response_id, exchange.version_id) == ("generate", answer["id"], version.id)
    assert json.loads(bytes(exchange.response or b"")) == answer


def test_the_engine_is_asked_for_what_was_asked(http: httpx.Client, engine: TokenEngine) -> None:
    sampling = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 8,
        "stop": ["\n"],
        "stop_token_ids": [9],
        "repetition_penalty": 1.0,
        "logprobs": True,
    }
    ask(http, sampling_params=sampling)

    (asked,) = engine.asked
    exact = {"return_token_ids": True, "logprobs": 0}
    assert asked == {"prompt": PROMPT, "model": "tiny", **sampling, **exact}
    assert json.loads(bytes(only_exchange().sampling))["temperature"] == 0.7


def test_without_a_limit_the_answer_may_fill_the_context(http: httpx.Client, engine: TokenEngine) -> None:
    ask(http)
    assert engine.asked[0]["max_tokens"] is None  # vLLM would stop after 16 if it were left out


def test_a_seed_is_left_out_and_said_to_be(http: httpx.Client, engine: TokenEngine) -> None:
    response = http.post(PATH, json={"prompt_ids": PROMPT, "sampling_params": {"seed": 7}})
    assert response.headers["x-claw-dropped"] == "seed"
    assert "seed" not in engine.asked[0]


def test_several_choices_have_their_tokens_each(http: httpx.Client, engine: TokenEngine) -> None:
    engine.completions = [Completion([1, 2], [-1.0, -2.0]), Completion([3], [-3.0])]

    answer = ask(http, sampling_params={"n": 2})

    assert [choice["token_ids"] for choice in answer["choices"]] == [[1, 2], [3]]
    assert [choice["versions"][0]["end"] for choice in answer["choices"]] == [2, 1]
    assert answer["token_ids"] == [1, 2]


@pytest.mark.parametrize("place", ["body", "address", "header"])
def test_calls_that_name_a_trajectory_become_its_steps(
    http: httpx.Client, engine: TokenEngine, key: ApiKey, version: Version, place: str
) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)
    engine.completions = [Completion([8, 9], [-0.5, -1.0]), Completion([11], [-0.25])]
    for prompt in ([5, 6], [5, 6, 8, 9, 10]):
        if place == "body":
            ask(http, prompt, trajectory_id=trajectory.id, sampling_params={"temperature": 0.5})
        elif place == "address":
            ask(http, prompt, path=f"/t/{trajectory.id}{PATH}", sampling_params={"temperature": 0.5})
        else:
            http.headers["x-trajectory-id"] = trajectory.id
            ask(http, prompt, sampling_params={"temperature": 0.5})
    fold_pending()

    first, second = load_steps(trajectory)
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ([5, 6], [8, 9], [-0.5, -1.0])
    assert (second.prompt_ids, second.completion_ids) == ([5, 6, 8, 9, 10], [11])
    assert (second.row.parent_id, second.row.shared_tokens) == (first.row.id, 4)
    assert second.row.is_exact
    assert (second.row.version_id, second.row.temperature) == (version.id, 0.5)
    assert not Exchange.objects.set_aside().exists()


def test_tries_at_one_prompt_are_siblings(http: httpx.Client, engine: TokenEngine, key: ApiKey) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)
    engine.completions = [Completion([8], [-0.5]), Completion([9], [-0.5])]
    for _ in range(2):
        ask(http, trajectory_id=trajectory.id)
    fold_pending()
    assert [step.parent_id for step in Step.objects.all()] == [None, None]


def test_a_call_that_names_no_trajectory_waits_in_the_ledger_to_be_submitted(http: httpx.Client) -> None:
    ask(http)
    assert fold_pending() == 1
    assert Exchange.objects.get().fold_error == ""
    assert not Trajectory.objects.exists()


def test_a_prompt_that_is_too_long_is_refused_in_the_engines_words(http: httpx.Client, key: ApiKey) -> None:
    trajectory = TrajectoryFactory.create(agent=key.agent)
    body = {"prompt_ids": [1] * (MAX_MODEL_LEN + 1), "trajectory_id": trajectory.id}

    message = assert_error(http.post(PATH, json=body), status=400, code="context_length_exceeded", param="prompt_ids")

    assert message == f"Input length ({MAX_MODEL_LEN + 1}) exceeds model's maximum context length ({MAX_MODEL_LEN})."
    exchange = only_exchange()
    assert (exchange.status, exchange.error) == (ExchangeStatus.ERROR, message)
    fold_pending()
    trajectory.refresh_from_db()
    assert (trajectory.n_steps, trajectory.has_error) == (0, True)


def test_ids_that_the_model_does_not_have_are_refused_in_the_engines_words(http: httpx.Client) -> None:
    assert "out of vocabulary" in assert_error(http.post(PATH, json={"prompt_ids": [60_000]}), status=400)


@pytest.mark.parametrize(
    "completion",
    [Completion([21, 22], [-0.5]), Completion([21], [None]), Completion([], [])],
)
def test_an_engine_that_does_not_tell_each_token_is_no_answer(
    http: httpx.Client, engine: TokenEngine, completion: Completion
) -> None:
    engine.completions = [completion]
    answer = http.post(PATH, json={"prompt_ids": PROMPT})
    assert_error(answer, status=502, code="engine_broken")
    assert "it does not tell each token's id and log-prob" in answer.json()["error"]["message"]
    assert not only_exchange().is_exact


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt_ids": None}, "prompt_ids"),
        ({"prompt_ids": []}, "prompt_ids"),
        ({"prompt_ids": "5 6"}, "prompt_ids"),
        ({"prompt_ids": [5.0]}, "prompt_ids"),
        ({"prompt_ids": [True]}, "prompt_ids"),
        ({"prompt_ids": [-1]}, "prompt_ids"),
        ({"prompt_ids": [2**31]}, "prompt_ids"),
        ({"prompt_token_ids": [5]}, "prompt_ids"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"stream": True}, "stream"),
        ({"image_data": ["x"]}, "image_data"),
        ({"model": 5}, "model"),
        ({"trajectory_id": 5}, "trajectory_id"),
        ({"sampling_params": []}, "sampling_params"),
        ({"sampling_params": {"n": 0}}, "sampling_params.n"),
        ({"sampling_params": {"n": 65}}, "sampling_params.n"),
        ({"sampling_params": {"temprature": 1}}, "sampling_params.temprature"),
        ({"sampling_params": {"prompt_logprobs": 1}}, "sampling_params.prompt_logprobs"),
        ({"sampling_params": {"use_beam_search": True}}, "sampling_params.use_beam_search"),
        ({"sampling_params": {"model": 5}}, "sampling_params.model"),
    ],
)
def test_it_refuses_by_name_what_it_does_not_know(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    message = assert_error(http.post(PATH, json={"prompt_ids": PROMPT, **change}), status=400, param=param)
    assert f"`{param}`" in message
    assert not Exchange.objects.exists()


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b'"x"', b'{"prompt_ids": [NaN]}'])
def test_it_refuses_what_is_no_json_object(http: httpx.Client, body: bytes) -> None:
    assert_error(http.post(PATH, content=body), status=400, code="invalid_json")


@pytest.mark.parametrize("fields", [{"model": "gpt-5"}, {"sampling_params": {"model": "gpt-5"}}])
def test_it_refuses_unknown_models(http: httpx.Client, fields: dict[str, Any]) -> None:
    response = http.post(PATH, json={"prompt_ids": PROMPT, **fields})
    assert_error(response, status=404, code="model_not_found", param="model")


@pytest.mark.parametrize("trajectory_id", ["traj_x", new_id("traj")])
def test_it_refuses_a_trajectory_that_is_not_there(http: httpx.Client, trajectory_id: str) -> None:
    response = http.post(PATH, json={"prompt_ids": PROMPT, "trajectory_id": trajectory_id})
    assert_error(response, status=404, code="trajectory_not_found", param="trajectory_id")


def test_it_refuses_another_teams_trajectory_and_one_that_is_complete(
    http: httpx.Client, key: ApiKey, other_key: ApiKey
) -> None:
    theirs = TrajectoryFactory.create(agent=other_key.agent)
    done = TrajectoryFactory.create(agent=key.agent, state=TrajectoryState.COMPLETE)
    for trajectory, status in ((theirs, 404), (done, 409)):
        response = http.post(PATH, json={"prompt_ids": PROMPT, "trajectory_id": trajectory.id})
        assert response.status_code == status


def test_it_needs_a_key(gateway: GatewayServer) -> None:
    response = httpx.post(gateway.url + PATH, json={"prompt_ids": PROMPT})
    assert_error(response, status=401, code="invalid_api_key")


def test_the_wrong_method_is_405(http: httpx.Client) -> None:
    response = http.get(PATH)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
