"""Anthropic's messages through a real server: what the client gets, what the engine is asked, what the pool keeps."""

import json
import re

import httpx
import pytest

from apps.trajectories.models import ExchangeStatus
from tests.apps.gateway.conftest import GatewayServer, only_exchange, wait_until
from tests.apps.gateway.messages_client import PATH, WEATHER, ask, assert_exact, join_blocks, read_stream
from tests.fakes.engine import FakeEngine

TOOL = {"name": "get_weather", "arguments": {"city": "Oslo", "unit": "°C"}}
USAGE = {"input_tokens": 11, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 5}


def test_a_whole_answer_is_a_message_and_kept_exactly(http: httpx.Client, engine: FakeEngine) -> None:
    response = http.post(f"{PATH}?beta=true", json=ask(temperature=0.7, metadata={"user_id": "alice"}))

    body = response.json()
    exchange = only_exchange()
    assert response.status_code == 200
    assert body == {
        "id": f"msg_{exchange.id.removeprefix('exch_')}",
        "type": "message",
        "role": "assistant",
        "model": "otter",
        "content": [{"type": "text", "text": "Hello 🦦 you"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE,
    }
    assert response.headers["request-id"] == response.headers["x-request-id"] == exchange.id
    assert response.headers["x-claw-version"] == "otter@v0"
    assert_exact(exchange, engine)
    assert exchange.dialect == "messages"
    assert exchange.response_id == body["id"]
    assert json.loads(bytes(exchange.response or b"")) == body
    assert json.loads(bytes(exchange.request))["metadata"] == {"user_id": "alice"}
    answer = json.loads(bytes(exchange.chat_response or b""))
    assert answer["choices"][0]["message"]["content"] == "Hello 🦦 you"
    assert json.loads(bytes(exchange.sampling))["temperature"] == 0.7


def test_a_stream_has_anthropics_events_in_their_order(http: httpx.Client, engine: FakeEngine) -> None:
    events = read_stream(http.post(PATH, json=ask(stream=True)))

    kinds = [event["type"] for event in events]
    assert kinds == [
        *("message_start", "ping", "content_block_start"),
        *["content_block_delta"] * 4,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start = events[0]["message"]
    assert start["usage"]["input_tokens"] == 11
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert join_blocks(events) == [{"type": "text", "text": "Hello 🦦 you"}]
    assert events[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": USAGE,
    }
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert exchange.response_id == start["id"]
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["content"] == join_blocks(events)
    assert (kept["stop_reason"], kept["usage"]) == ("end_turn", USAGE)
    assert json.loads(bytes(exchange.chat_response or b""))["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_thoughts_tools_and_their_ids(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    engine.script.reasoning = "hm"
    engine.script.tool = TOOL
    engine.script.more_tools = [{"name": "get_weather", "arguments": {"city": "Bergen"}}]

    response = http.post(PATH, json=ask(stream=is_streamed, tools=[WEATHER]))

    if is_streamed:
        events = read_stream(response)
        blocks, stop_reason = join_blocks(events), events[-2]["delta"]["stop_reason"]
    else:
        blocks, stop_reason = response.json()["content"], response.json()["stop_reason"]
    thought, *calls = blocks
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert thought["signature"]
    assert [call["input"] for call in calls] == [TOOL["arguments"], {"city": "Bergen"}]
    assert {(call["type"], call["name"]) for call in calls} == {("tool_use", "get_weather")}
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == 2
    assert all(re.fullmatch(r"call[0-9a-f]{24}", call_id) for call_id in ids)
    assert stop_reason == "tool_use"
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert json.loads(bytes(exchange.response or b""))["content"] == blocks
    (choice,) = json.loads(bytes(exchange.chat_response or b""))["choices"]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ids
    assert choice["message"]["reasoning_content"] == "hm"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("finish_reason", "met", "said", "sequence"),
    [
        ("length", None, "max_tokens", None),
        ("stop", "STOP", "stop_sequence", "STOP"),
        ("stop", 2, "end_turn", None),
        ("content_filter", None, "refusal", None),
    ],
)
def test_it_says_why_it_stopped(
    http: httpx.Client,
    engine: FakeEngine,
    finish_reason: str,
    met: str | int | None,
    said: str,
    sequence: str | None,
    *,
    is_streamed: bool,
) -> None:
    engine.script.finish_reason = finish_reason
    engine.script.stop_reason = met

    response = http.post(PATH, json=ask(stream=is_streamed, stop_sequences=["STOP"]))

    end = read_stream(response)[-2]["delta"] if is_streamed else response.json()
    assert (end["stop_reason"], end["stop_sequence"]) == (said, sequence)
    assert engine.calls[0].body["stop"] == ["STOP"]
    kept = json.loads(bytes(only_exchange().response or b""))
    assert (kept["stop_reason"], kept["stop_sequence"]) == (said, sequence)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_empty_answer_is_one_empty_text(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    engine.script.pieces = []

    response = http.post(PATH, json=ask(stream=is_streamed))

    blocks = join_blocks(read_stream(response)) if is_streamed else response.json()["content"]
    assert blocks == [{"type": "text", "text": ""}]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tokens_out_of_the_cache_stand_apart(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    engine.script.n_cached = 8

    response = http.post(PATH, json=ask(stream=is_streamed))

    usage = read_stream(response)[-2]["usage"] if is_streamed else response.json()["usage"]
    assert usage == {**USAGE, "input_tokens": 3, "cache_read_input_tokens": 8}


def test_characters_split_between_reads_stay_whole(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.split_at = 7

    events = read_stream(http.post(PATH, json=ask(stream=True)))

    assert join_blocks(events) == [{"type": "text", "text": "Hello 🦦 you"}]
    assert_exact(only_exchange(), engine)


@pytest.mark.parametrize("cut", ["break_after", "error_after"])
def test_a_stream_that_breaks_ends_with_an_error_event(http: httpx.Client, engine: FakeEngine, cut: str) -> None:
    setattr(engine.script, cut, 3)
    engine.script.pause_s = 0.02

    events = read_stream(http.post(PATH, json=ask(stream=True)))

    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "overloaded_error"
    assert events[-1]["request_id"].startswith("exch_")
    assert "message_stop" not in [event["type"] for event in events]
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ERROR
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["content"] == [{"type": "text", "text": "Hello"}]
    assert kept["stop_reason"] is None


def test_a_client_that_leaves_keeps_what_came(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "get_weather", "arguments": {"city": "x" * 2000}}
    engine.script.pause_s = 0.02
    with http.stream("POST", PATH, json=ask(stream=True, tools=[WEATHER])) as response:
        seen = ""
        for text in response.iter_text():
            seen += text
            if "input_json_delta" in seen:
                break

    wait_until(lambda: engine.calls[0].is_cancelled)
    exchange = only_exchange()
    assert exchange.status == ExchangeStatus.ABORTED
    (block,) = json.loads(bytes(exchange.response or b""))["content"]
    assert block["type"] == "tool_use"
    assert block["input"]["unparsed_arguments"].startswith('{"ci')


def test_a_call_below_a_trajectorys_address_that_is_unknown_is_refused(http: httpx.Client) -> None:
    response = http.post("/t/traj_nowhere/v1/messages", json=ask())

    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_the_key_comes_in_either_header(gateway: GatewayServer, secret: str) -> None:
    for headers in ({"x-api-key": secret}, {"Authorization": f"Bearer {secret}"}):
        assert httpx.post(gateway.url + PATH, json=ask(), headers=headers).status_code == 200


def test_a_limit_above_the_engines_context_is_lowered_to_it(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.max_model_len = 2048

    for is_streamed in (False, True):
        response = http.post(PATH, json=ask(max_tokens=32_000, stream=is_streamed))
        assert response.status_code == 200, response.text
        assert engine.calls[-1].body["max_tokens"] == 2048
