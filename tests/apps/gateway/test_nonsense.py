"""An engine's answer that is none: the client is told in its dialect, the call is kept, and nothing breaks."""

from typing import Any

import httpx
import pytest

from apps.gateway import engine_wire
from apps.gateway.capture import AnswerCapture, Wishes
from apps.gateway.token_check import TOOL_CALL, Expectations, Said, find_difference
from apps.trajectories.models import Exchange, ExchangeStatus
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.conftest import chat, wait_until
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
SAID = chat()["messages"]
DOORS: dict[str, Json] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "hello"},
    "/v1/messages": {"messages": SAID, "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}


def choice(**said: Any) -> Json:
    """One choice that says this, whole and streamed, as chat and as a completion."""
    message = {"role": "assistant", **said.pop("message", {})}
    return {"choices": [{"index": 0, "message": message, "delta": message, "finish_reason": "stop", **said}]}


NONSENSE: list[object] = [
    b"<html>",
    b"{",
    5,
    "no",
    [1],
    {"choices": 7},
    {"choices": [{"index": -1, "text": "x", "message": {"content": "x"}, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [{"index": 1, "text": "x", "message": {"content": "x"}, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [None]},
    choice(index="first", text="x"),
    choice(finish_reason={"a": 1}, text="x"),
    choice(logprobs=5, text="x"),
    choice(message={"content": {"text": "x"}}, text=["x"]),
    choice(message={"tool_calls": [{"index": [1], "function": {"name": {"a": 1}}}]}, text={"b": 1}),
    choice(message={"reasoning": {"a": 1}}, text={"a": 1}),
    choice(prompt_token_ids=5, token_ids=5, text="x"),
]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", DOORS)
def test_an_answer_that_is_none_is_told_and_kept(
    http: httpx.Client, engine: FakeEngine, path: str, *, is_streamed: bool
) -> None:
    body = {"model": "otter", "stream": is_streamed, **DOORS[path]}
    for nonsense in NONSENSE:
        engine.script.nonsense = nonsense
        answer = http.post(path, json=body)
        said = answer.json()["error"]["message"]
        assert answer.status_code == 502, (nonsense, answer.text)
        assert said.startswith("The model gave no answer: the engine's answer makes no sense: ")
        assert said.endswith(("it is not JSON.", "it does not have the form that was asked for.", "were asked for."))
    engine.script.nonsense = None
    assert http.post(path, json=body).status_code == 200

    kept = list(Exchange.objects.order_by("id").values_list("status", flat=True))
    assert kept == [ExchangeStatus.ERROR] * len(NONSENSE) + [ExchangeStatus.COMPLETE]
    fold_pending()
    assert not Exchange.objects.set_aside().exists()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_answer_without_end_is_no_answer(
    http: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(engine_wire, "MAX_ANSWER_BYTES", 2**20)
    engine.script.nonsense = b"x" * (2**20 + 1)
    answer = http.post(path, json={"model": "otter", **DOORS[path]})

    assert answer.status_code == 502, answer.text
    assert "longer than 1 MiB" in answer.json()["error"]["message"]
    assert Exchange.objects.get().status == ExchangeStatus.ERROR


@pytest.mark.parametrize(
    "usage",
    [
        5,
        [],
        {"prompt_tokens": "many"},
        {"completion_tokens": []},
        {"prompt_tokens_details": {"cached_tokens": {}}},
        {"prompt_tokens": 1, "completion_tokens": -1, "total_tokens": -(10**18)},
        {"prompt_tokens_details": {"cached_tokens": -1}},
    ],
)
def test_a_usage_that_counts_nothing_is_not_counted(usage: object) -> None:
    capture = AnswerCapture(response_id="r", model="otter", n_choices=1, wishes=Wishes())
    capture.take_whole(choice(message={"content": "hi"}) | {"usage": usage})
    assert capture.usage is None
    assert capture.render()["choices"][0]["message"]["content"] == "hi"


def test_each_dialect_says_it_in_its_own_shape(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.nonsense = {"choices": [{"finish_reason": 5}]}
    said = {path: http.post(path, json={"model": "otter", **body}).json() for path, body in DOORS.items()}

    anthropic = said.pop("/v1/messages")
    assert (anthropic["type"], anthropic["error"]["type"]) == ("error", "api_error")
    assert all(
        (body["error"]["code"], body["error"]["type"]) == ("engine_broken", "server_error") for body in said.values()
    )


COUNT = {"model": "otter", "messages": SAID}
VECTORS = {"model": "otter", "input": ["a", "b"]}
GOOD = {"index": 0, "embedding": [0.5, 1]}


@pytest.mark.parametrize(
    ("path", "body", "nonsense", "why"),
    [
        ("/v1/messages/count_tokens", COUNT, b"<html>", "it is not JSON"),
        ("/v1/messages/count_tokens", COUNT, [], "the form"),
        ("/v1/messages/count_tokens", COUNT, {"error": "no"}, "`count` is missing"),
        ("/v1/messages/count_tokens", COUNT, {"count": "many"}, "the form"),
        ("/v1/messages/count_tokens", COUNT, {"count": -1}, "the form"),
        ("/v1/embeddings", VECTORS, b"<html>", "it is not JSON"),
        ("/v1/embeddings", VECTORS, 5, "the form"),
        ("/v1/embeddings", VECTORS, {"error": "no"}, "`data` is missing"),
        ("/v1/embeddings", VECTORS, {"data": [{"index": 0}]}, "`embedding` is missing"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, GOOD]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, {"index": "1", "embedding": [1]}]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, {"index": 1, "embedding": ["x"]}]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, {"index": 1, "embedding": {"a": 1}}]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, {"index": 1, "embedding": "AAA="}]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, {"index": 1, "embedding": "&"}]}, "the form"),
        ("/v1/embeddings", VECTORS, {"data": [GOOD, GOOD | {"index": 1}], "usage": {"prompt_tokens": [5]}}, "the form"),
    ],
)
def test_what_is_not_kept_is_told_too(
    http: httpx.Client, engine: FakeEngine, path: str, body: Json, nonsense: object, why: str
) -> None:
    engine.script.n_dimensions = 2
    engine.script.nonsense = nonsense
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.headers["x-request-id"][:5]) == (502, "exch_")
    error = answer.json()["error"]
    assert why in error["message"]
    assert error.get("code", "engine_broken") == "engine_broken"
    assert error["type"] in {"server_error", "api_error"}
    engine.script.nonsense = None
    assert http.post(path, json=body).status_code == 200


def test_what_is_nested_too_deeply_for_the_engine_is_the_clients_fault(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.n_dimensions = 2
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    for path, fields in (
        ("/v1/embeddings", {**VECTORS, "mm_processor_kwargs": deep}),
        ("/v1/messages/count_tokens", {**COUNT, "chat_template_kwargs": {"a": deep}}),
        ("/v1/chat/completions", {**COUNT, "chat_template_kwargs": {"a": deep}}),
    ):
        answer = http.post(path, json=fields)
        assert (answer.status_code, "nested too deeply" in answer.text) == (400, True), path


@pytest.mark.parametrize(
    "unreadable",
    [{}, {"choices": []}, {"choices": [{"finish_reason": "stop"}]}, {"choices": choice(text="x")["choices"] * 2}],
)
@pytest.mark.parametrize("path", DOORS)
def test_a_whole_answer_that_the_pool_could_not_read_is_none(
    http: httpx.Client, engine: FakeEngine, path: str, unreadable: Json
) -> None:
    engine.script.nonsense = unreadable
    is_text = path == "/v1/completions" and unreadable.get("choices") == [{"finish_reason": "stop"}]  # an empty one
    assert http.post(path, json={"model": "otter", **DOORS[path]}).status_code == (200 if is_text else 502)
    fold_pending()
    assert not Exchange.objects.set_aside().exists()


@pytest.mark.parametrize(("is_streamed", "knows_streams"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("path", DOORS)
def test_an_error_that_comes_as_an_answer_is_told_as_one(
    http: httpx.Client, engine: FakeEngine, path: str, *, is_streamed: bool, knows_streams: bool
) -> None:
    engine.script.nonsense, engine.script.knows_streams = {"error": {"message": "out of luck"}}, knows_streams
    answer = http.post(path, json={"model": "otter", "stream": is_streamed, **DOORS[path]})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "the engine gave up: out of luck" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", DOORS)
def test_a_whole_answer_to_a_call_for_a_stream_is_none(http: httpx.Client, engine: FakeEngine, path: str) -> None:
    engine.script.nonsense, engine.script.knows_streams = choice(text="x"), False
    answer = http.post(path, json={"model": "otter", "stream": True, **DOORS[path]})
    assert (answer.status_code, Exchange.objects.get().status) == (502, ExchangeStatus.ERROR)
    assert answer.json()["error"]["message"].endswith("it came whole, where a stream was asked for.")


DEEP = b'{"a":' * 400 + b"1" + b"}" * 400
STOPPED = (
    b'{"index":0,"message":{"content":"x"},"delta":{"content":"x"},"text":"x","finish_reason":"stop","stop_reason":'
)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize(
    "whole",
    [
        b'{"choices":[%b""}]}' % STOPPED,
        b'{"choices":[%b%b}]}' % (STOPPED, DEEP),
        b'{"choices":[%bnull}],"usage":%b}' % (STOPPED, DEEP),
        b'{"choices":[%bnull}],"system_fingerprint":%b}' % (STOPPED, DEEP),
    ],
    ids=["empty stop", "deep stop", "deep usage", "deep fingerprint"],
)
def test_what_can_be_read_and_not_written_breaks_no_record(
    http: httpx.Client, engine: FakeEngine, path: str, whole: bytes, *, is_streamed: bool
) -> None:
    engine.script.nonsense = whole
    answer = http.post(path, json={"model": "otter", "stream": is_streamed, **DOORS[path]})
    assert answer.status_code in {200, 502}
    wait_until(Exchange.objects.exists)
    fold_pending()
    assert not Exchange.objects.set_aside().exists()


def test_arguments_of_any_depth_are_looked_at() -> None:
    said = Said(texts=[], calls=[("f", "[" * 1000 + "12" + "]" * 1000)], finish_reason="stop", stop_reason=None)
    assert find_difference(said, ["f", "x"], Expectations()) == TOOL_CALL
