"""Chat completions through a real server: what the client gets, what the engine is asked, what the pool keeps."""

import json
import re
from typing import Any

import httpx
import pytest

from apps.accounts.models import ApiKey
from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.registry.models import Version
from apps.trajectories.models import Exchange, ExchangeStatus, Step
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.conftest import chat, only_exchange, read_events
from tests.fakes.engine import CALL_ID, FakeEngine, Sampled

PATH = "/v1/chat/completions"
TOOL = {"name": "get_weather", "arguments": {"city": "Paris"}}


def assert_exact(exchange: Exchange, engine: FakeEngine, choices: list[Sampled] | None = None) -> None:
    """The pool has, byte for byte, what the engine sampled."""
    call = engine.calls[-1]
    choices = choices or call.choices
    assert exchange.is_exact
    assert bytes(exchange.prompt_token_ids or b"") == pack_ids(call.prompt_token_ids)
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [pack_ids(choice.token_ids) for choice in choices]
    logprobs = [pack_logprobs(choice.logprobs) for choice in choices]
    assert [bytes(values) for values in exchange.completion_logprobs] == logprobs


def test_a_whole_answer_is_clean_and_kept_exactly(
    http: httpx.Client, engine: FakeEngine, key: ApiKey, version: Version
) -> None:
    response = http.post(PATH, json=chat(temperature=0.7, user="alice"), headers={"x-session-id": "s-1"})

    body = response.json()
    assert response.status_code == 200
    assert body["choices"][0]["message"]["content"] == "Hello 🦦 you"
    assert body["model"] == "otter"
    assert body["usage"]["completion_tokens"] == 5
    assert body["choices"][0]["logprobs"] is None
    assert "token_ids" not in body["choices"][0]
    assert "prompt_token_ids" not in body
    assert response.headers["x-claw-version"] == "otter@v0"
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert exchange.id == response.headers["x-request-id"]
    assert exchange.response_id == body["id"]
    assert body["id"].startswith("chatcmpl-")
    assert (exchange.key_id, exchange.agent_id, exchange.project_id) == (key.id, key.agent_id, key.agent.project_id)
    assert exchange.version_id == version.id
    assert exchange.session_key == "s-1"
    assert exchange.status == ExchangeStatus.COMPLETE
    assert json.loads(bytes(exchange.response or b"")) == body
    assert json.loads(bytes(exchange.sampling))["temperature"] == 0.7
    assert json.loads(bytes(exchange.request))["user"] == "alice"


def test_the_engine_is_asked_for_ids_under_its_own_name(http: httpx.Client, engine: FakeEngine) -> None:
    http.post(PATH, json=chat(user="alice", store=True, top_k=5))

    asked = engine.calls[0].body
    assert asked["model"] == "tiny"
    assert asked["return_token_ids"] is True
    assert asked["logprobs"] is True
    assert asked["top_k"] == 5
    assert "user" not in asked
    assert "store" not in asked
    assert "Authorization" not in engine.calls[0].headers


def test_a_streamed_answer_is_clean_and_kept_exactly(http: httpx.Client, engine: FakeEngine) -> None:
    response = http.post(PATH, json=chat(stream=True))

    *events, done = read_events(response)
    chunks = [json.loads(event) for event in events]
    assert done == "[DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert text == "Hello 🦦 you"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["model"] for chunk in chunks} == {"otter"}
    assert all("usage" not in chunk and "prompt_token_ids" not in chunk for chunk in chunks)
    assert all("token_ids" not in chunk["choices"][0] for chunk in chunks)
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)
    exchange = only_exchange()
    assert_exact(exchange, engine)
    assert {chunk["id"] for chunk in chunks} == {exchange.response_id}
    kept = json.loads(bytes(exchange.response or b""))
    assert kept["object"] == "chat.completion"
    assert kept["choices"][0]["message"] == {"role": "assistant", "content": "Hello 🦦 you"}
    assert kept["usage"]["completion_tokens"] == 5
    assert exchange.is_streamed
    assert exchange.first_token_at is not None
    assert exchange.started_at <= exchange.first_token_at <= exchange.ended_at


def test_usage_logprobs_and_ids_are_passed_on_when_asked_for(http: httpx.Client, engine: FakeEngine) -> None:
    wishes = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    *events, _ = read_events(http.post(PATH, json=chat(stream=True, **wishes)))

    chunks = [json.loads(event) for event in events]
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert chunks[0]["prompt_token_ids"] == engine.calls[0].prompt_token_ids
    with_tokens = [chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0].get("token_ids")]
    assert [choice["token_ids"][0] for choice in with_tokens] == engine.calls[0].choices[0].token_ids
    seen = [choice["logprobs"]["content"][0]["logprob"] for choice in with_tokens]
    assert seen == engine.calls[0].choices[0].logprobs


def test_characters_split_between_reads_stay_whole(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.split_at = 7

    events = read_events(http.post(PATH, json=chat(stream=True)))

    assert "🦦" in "".join(events)
    assert_exact(only_exchange(), engine)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_several_choices_are_kept_apart(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    response = http.post(PATH, json=chat(stream=is_streamed, n=3))

    assert response.status_code == 200
    exchange = only_exchange()
    assert len(exchange.completion_token_ids) == 3
    assert_exact(exchange, engine)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tool_calls_get_unique_alphanumeric_ids(http: httpx.Client, engine: FakeEngine, *, is_streamed: bool) -> None:
    engine.script.tool = TOOL
    ids = set()
    for _ in range(2):
        Exchange.objects.all().delete()
        response = http.post(PATH, json=chat(stream=is_streamed, tools=[]))
        exchange = only_exchange()
        (choice,) = json.loads(bytes(exchange.response or b""))["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert re.fullmatch(r"call[0-9a-f]{24}", call["id"])
        assert call["id"] in response.text
        assert CALL_ID not in response.text
        assert json.loads(call["function"]["arguments"]) == TOOL["arguments"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert_exact(exchange, engine)
        ids.add(call["id"])
    assert len(ids) == 2


@pytest.mark.parametrize("is_streamed", [False, True])
def test_reasoning_comes_under_the_name_that_agents_read(
    http: httpx.Client, engine: FakeEngine, *, is_streamed: bool
) -> None:
    engine.script.reasoning = "hm"

    response = http.post(PATH, json=chat(stream=is_streamed))

    assert '"reasoning_content":"hm"' in response.text
    kept = json.loads(bytes(only_exchange().response or b""))
    assert kept["choices"][0]["message"]["reasoning_content"] == "hm"


def test_ids_that_do_not_add_up_are_not_called_exact(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.lose_ids_after = 3

    http.post(PATH, json=chat(stream=True))

    exchange = only_exchange()
    assert not exchange.is_exact
    assert exchange.status == ExchangeStatus.COMPLETE


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("script", "doubt", "is_exact"),
    [
        ({"shown": ["Good", "bye"]}, "text", True),
        ({"shown": ["Hello 🦦"]}, "swallowed", True),
        ({"tool": TOOL, "shown": []}, "swallowed", True),
        ({"tool": TOOL, "shown": ['{"city": "Rome"}']}, "text", True),
        ({"has_logprobs": False}, "count", False),
        ({"miscounts_by": 1}, "count", False),
        ({"reasoning": "well"}, "", True),
        ({"tool": TOOL}, "", True),
        ({"tool": TOOL, "more_tools": [{"name": "look", "arguments": {"n": 2}}]}, "", True),
        ({"pieces": ["one", ", ST", "OPx"], "shown": ["one", ", "], "stop_reason": "STOP"}, "", True),
    ],
    ids=str,
)
def test_a_step_is_marked_where_tokens_and_answer_disagree(
    http: httpx.Client, engine: FakeEngine, script: dict[str, Any], doubt: str, *, is_exact: bool, is_streamed: bool
) -> None:
    for name, value in script.items():
        setattr(engine.script, name, value)

    response = http.post(PATH, json=chat(stream=is_streamed, tools=[]))

    assert response.status_code == 200, response.text
    exchange = only_exchange()
    assert (exchange.token_check, exchange.is_exact) == (doubt, is_exact)
    fold_pending()
    step = Step.objects.get()
    assert (step.token_check, step.is_exact) == (doubt, is_exact)


def test_a_call_that_was_cut_short_is_not_doubted(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.break_after = 3
    engine.script.pause_s = 0.02

    http.post(PATH, json=chat(stream=True))

    assert (only_exchange().token_check, only_exchange().status) == ("", ExchangeStatus.ERROR)


def test_a_seed_is_left_out_and_said_so(http: httpx.Client, engine: FakeEngine) -> None:
    response = http.post(PATH, json=chat(seed=5))

    assert "seed" not in engine.calls[0].body
    assert response.headers["x-claw-dropped"] == "seed"
    assert json.loads(bytes(only_exchange().sampling))["dropped"] == {"seed": 5}


def test_other_paths_go_on_to_the_rest(http: httpx.Client) -> None:
    assert http.get("/p/shop/").text == "rest"
