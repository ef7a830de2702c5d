"""Text completions through a real server: what the client gets, what the engine is asked, what the pool keeps."""

import json
from typing import Any

import httpx
import openai
import pytest

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.gateway.capture import AnswerCapture
from apps.gateway.completions.behaviour import CompletionDialect
from apps.gateway.completions.shapes import read_completion_request
from apps.trajectories.models import Exchange, ExchangeStatus, Step
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import load_steps
from tests.apps.gateway.conftest import GatewayServer, only_exchange, read_events
from tests.apps.gateway.test_capture import SAMPLES, read_chunks
from tests.apps.gateway.test_refusals import assert_error
from tests.fakes.engine import FakeEngine

PATH = "/v1/completions"


def completion(**fields: Any) -> dict[str, Any]:
    """Return a small request."""
    return {"model": "otter", "prompt": "Once upon", **fields}


def assert_exact(exchange: Exchange, engine: FakeEngine) -> None:
    """The pool has, byte for byte, what the engine sampled."""
    call = engine.calls[-1]
    assert exchange.is_exact
    assert exchange.token_check == ""
    assert bytes(exchange.prompt_token_ids or b"") == pack_ids(call.prompt_token_ids)
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [pack_ids(c.token_ids) for c in call.choices]
    assert [bytes(values) for values in exchange.completion_logprobs] == [
        pack_logprobs(c.logprobs) for c in call.choices
    ]


def test_a_whole_answer_is_clean_and_kept_exactly(http: httpx.Client, engine: FakeEngine) -> None:
    response = http.post(PATH, json=completion(user="alice", temperature=0.5), headers={"x-session-id": "s-1"})

    body = response.json()
    assert response.status_code == 200, response.text
    assert (body["object"], body["model"]) == ("text_completion", "otter")
    (choice,) = body["choices"]
    assert (choice["text"], choice["index"], choice["finish_reason"]) == ("Hello 🦦 you", 0, "stop")
    assert choice["logprobs"] is None
    assert not {"message", "token_ids", "prompt_token_ids", "prompt_logprobs"} & set(choice)
    assert body["usage"]["completion_tokens"] == 5
    assert body["id"].startswith("cmpl-")
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert (exchange.dialect, exchange.response_id, exchange.session_key) == ("completions", body["id"], "s-1")
    assert json.loads(bytes(exchange.response or b"")) == body
    asked = engine.calls[0].body
    assert (asked["model"], asked["prompt"], asked["temperature"]) == ("tiny", "Once upon", 0.5)
    assert (asked["return_token_ids"], asked["logprobs"]) == (True, 0)
    assert "user" not in asked


def test_a_streamed_answer_is_clean_and_kept_exactly(http: httpx.Client, engine: FakeEngine) -> None:
    *events, done = read_events(http.post(PATH, json=completion(stream=True)))

    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "Hello 🦦 you"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in chunks)
    assert all(choice["logprobs"] is None for chunk in chunks for choice in chunk["choices"])
    exchange = only_exchange()
    assert_exact(exchange, engine)
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["object"] == "text_completion"
    assert kept["choices"][0]["text"] == "Hello 🦦 you"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_logprobs_usage_and_ids_are_passed_on_when_asked_for(
    http: httpx.Client, engine: FakeEngine, *, is_streamed: bool
) -> None:
    wishes: dict[str, Any] = {"logprobs": 2, "return_token_ids": True}
    if is_streamed:
        wishes |= {"stream": True, "stream_options": {"include_usage": True}}
    response = http.post(PATH, json=completion(**wishes))

    answers = [json.loads(event) for event in read_events(response)[:-1]] if is_streamed else [response.json()]
    choices = [choice for answer in answers for choice in answer["choices"]]
    sampled = engine.calls[0].choices[0]
    assert engine.calls[0].body["logprobs"] == 2
    assert [token for choice in choices for token in choice.get("token_ids") or []] == sampled.token_ids
    assert choices[0]["prompt_token_ids"] == engine.calls[0].prompt_token_ids
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert [value for logprobs in told for value in logprobs["token_logprobs"]] == sampled.logprobs
    assert [token for logprobs in told for token in logprobs["tokens"]] == sampled.pieces
    assert [offset for logprobs in told for offset in logprobs["text_offset"]] == [0, 3, 5, 7, 11]
    assert all(len(top) == 3 for logprobs in told for top in logprobs["top_logprobs"])
    assert answers[-1]["usage"]["completion_tokens"] == 5
    assert_exact(only_exchange(), engine)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_prompt_becomes_a_step_of_its_own(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    http.post(PATH, json=completion(stream=is_streamed, n=2))
    http.post(PATH, json=completion(prompt=[5, 6, 7], stream=is_streamed))
    fold_pending()

    assert not Exchange.objects.set_aside().exists()
    first, other, ids = Step.objects.order_by("started_at", "choice")
    assert first.trajectory_id == other.trajectory_id != ids.trajectory_id
    (view,) = load_steps(ids.trajectory)
    assert view.messages == [{"role": "user", "content": "token ids: 5, 6, 7"}]
    assert view.row.is_exact
    assert not view.row.is_excluded
    assert view.completion_ids == engine.calls[1].choices[0].token_ids
    assert json.loads(bytes(first.answer))["content"] == "Hello 🦦 you"
    assert [view.messages for view in load_steps(first.trajectory)] == [[{"role": "user", "content": "Once upon"}]] * 2


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("prompt", [["one", "two"], [[5, 6], [7]]])
def test_several_prompts_are_answered_and_kept_out_of_training(
    http: httpx.Client, engine: FakeEngine, prompt: list[Any], *, is_streamed: bool
) -> None:
    response = http.post(PATH, json=completion(prompt=prompt, n=2, stream=is_streamed))

    assert response.status_code == 200, response.text
    assert engine.calls[0].body["prompt"] == prompt
    exchange = only_exchange()
    assert len(json.loads(bytes(exchange.response or b""))["choices"]) == 4
    assert exchange.prompt_token_ids is None
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [
        pack_ids(choice.token_ids) for choice in engine.calls[0].choices
    ]
    assert not exchange.is_exact
    assert not exchange.is_training_allowed
    fold_pending()
    assert [step.is_excluded for step in Step.objects.all()] == [True] * 4


@pytest.mark.parametrize("prompt", ["Once", ["Once"], [5, 6, 7], [[5, 6, 7]]])
def test_one_prompt_may_come_in_any_form(http: httpx.Client, engine: FakeEngine, prompt: Any) -> None:
    assert http.post(PATH, json=completion(prompt=prompt)).status_code == 200

    assert engine.calls[0].body["prompt"] == prompt
    assert_exact(only_exchange(), engine)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": [[5], []]}, "prompt[1]"),
        ({"prompt": [[5, -1]]}, "prompt[0]"),
        ({"prompt": ["a", [5]]}, "prompt[1]"),
        ({"prompt": ["a"] * 200, "n": 2}, "prompt"),
        ({"suffix": "the end"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"n": 0}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_it_names_the_field_at_fault(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = http.post(PATH, json=completion(**fields))

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert f"`{param}`" in response.json()["error"]["message"]
    assert engine.calls == []


@pytest.mark.parametrize(
    "fields",
    [
        {"best_of": 1},
        {"best_of": 2, "n": 2},
        {"echo": False, "suffix": None, "logprobs": None, "stream": None, "max_tokens": None},
        {"store": True, "metadata": {"a": "b"}},
    ],
    ids=str,
)
def test_what_changes_nothing_is_left_out(http: httpx.Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    assert http.post(PATH, json=completion(**fields)).status_code == 200
    assert set(engine.calls[0].body) <= {"model", "prompt", "n", "logprobs", "return_token_ids"}


@pytest.mark.parametrize("fields", [{"stop": ["x"]}, {"max_tokens": 5}, {"top_k": 3}, {"logit_bias": {"5": 1}}])
def test_what_steers_the_answer_goes_to_the_engine(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    assert http.post(PATH, json=completion(**fields)).status_code == 200
    assert fields.items() <= engine.calls[0].body.items()


def test_an_over_long_prompt_gets_the_engines_own_error(http: httpx.Client) -> None:
    response = http.post(PATH, json=completion(prompt="x" * 30_000))

    assert_error(response, status=400, code="context_length_exceeded", param="prompt")
    assert only_exchange().status == ExchangeStatus.ERROR


def test_it_refuses_strangers_unknown_models_and_other_methods(http: httpx.Client, gateway: GatewayServer) -> None:
    assert_error(httpx.post(gateway.url + PATH, json=completion()), status=401, code="invalid_api_key")
    assert_error(http.post(PATH, json=completion(model="gpt-5")), status=404, code="model_not_found", param="model")
    assert_error(http.get(PATH), status=405, code="method_not_allowed")
    assert_error(http.post(PATH, content=b"{"), status=400, code="invalid_json")
    assert not Exchange.objects.exists()


def test_a_stream_that_breaks_says_so(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.break_after = 3
    engine.script.pause_s = 0.02

    *events, last = read_events(http.post(PATH, json=completion(stream=True)))

    assert json.loads(last)["error"]["code"] == "engine_broken"
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["choices"][0]["text"] == "".join(json.loads(event)["choices"][0]["text"] for event in events)


def test_the_unmodified_package_gets_whole_and_streamed_answers(gateway: GatewayServer, secret: str) -> None:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=0) as client:
        whole = client.completions.create(model="otter", prompt="Once", logprobs=1, n=2)
        stream = client.completions.create(
            model="otter", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)

    assert [choice.text for choice in whole.choices] == ["Hello 🦦 you"] * 2
    assert whole.choices[1].logprobs is not None
    assert whole.choices[1].logprobs.text_offset == [0, 3, 5, 7, 11]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "Hello 🦦 you"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def open_capture(**fields: Any) -> AnswerCapture:
    request = read_completion_request(json.dumps(completion(**fields)).encode())
    return CompletionDialect().open_answer(request, response_id="cmpl-x")[0]


def test_what_a_real_engine_streams_and_answers_is_kept_alike() -> None:
    streamed, whole = open_capture(stream=True), open_capture()
    for chunk in read_chunks("completion_stream.txt"):
        streamed.take_chunk(chunk)
    whole.take_whole(json.loads((SAMPLES / "completion_whole.json").read_bytes()))

    assert streamed.packed_tokens().is_exact
    assert streamed.packed_tokens() == whole.packed_tokens()
    assert "".join(streamed.choices[0].content) == "".join(whole.choices[0].content)
    assert (streamed.find_doubt(), whole.find_doubt()) == ("", "")


def test_two_prompts_of_a_real_engines_stream_keep_their_own_tokens() -> None:
    capture = open_capture(prompt=["One", "Two cats"], stream=True)
    sampled: dict[int, list[int]] = {0: [], 1: []}
    for chunk in read_chunks("completion_two_prompts_stream.txt"):
        for choice in chunk["choices"]:
            sampled[choice["index"]] += choice["token_ids"]
        capture.take_chunk(chunk)

    assert capture.is_finished
    assert capture.packed_tokens().prompt is None
    assert capture.packed_tokens().completions == (pack_ids(sampled[0]), pack_ids(sampled[1]))
    assert capture.find_doubt() == ""
