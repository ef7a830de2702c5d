"""Everything that real clients put into a chat request: passed on, left out because it changes nothing, or refused.

The fields and forms are those of seventeen unmodified clients; their own requests are replayed at the end.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import chat, read_events
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"
CAPTURES = Path(__file__).parents[2] / "data" / "captures" / "captures.json.gz"

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call1", "type": "function", "function": {"name": "look", "arguments": '{"where": "here"}'}}
SCHEMA = {"name": "answer", "strict": True, "schema": {"type": "object"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
TEXT = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
NAMED = {"type": "function", "function": {"name": "look"}}


def strict_tool(*, is_strict: bool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "look", "strict": is_strict}}


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"frequency_penalty": 0.1},
        {"presence_penalty": 0.1},
        {"logit_bias": {"50256": -100}},
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"n": 2},
        {"logprobs": True, "top_logprobs": 3},
        {"tools": [TOOL]},
        {"tools": [strict_tool(is_strict=True)]},
        {"tools": [strict_tool(is_strict=False)]},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [strict_tool(is_strict=False)], "tool_choice": "required"},
        {"tools": [strict_tool(is_strict=True)], "tool_choice": NAMED},
        {"tools": [TOOL], "parallel_tool_calls": False},
        {"tools": [TOOL], "parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        {"reasoning_effort": "low"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"top_k": 5},
        {"min_p": 0.1},
        {"structured_outputs": {"json": {"type": "object"}}},
        {"documents": [{"title": "a", "text": "b"}]},
    ],
    ids=str,
)
def test_what_steers_the_answer_goes_to_the_engine(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    response = http.post(PATH, json=chat(**fields))

    assert response.status_code == 200, response.text
    asked = engine.calls[0].body
    assert {name: asked[name] for name in fields} == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"store": True},
        {"session_id": "s"},
        {"metadata": {"a": "b"}},
        {"user": "alice"},
        {"service_tier": "auto"},
        {"prompt_cache_key": "session:1"},
        {"prompt_cache_retention": "24h"},
        {"safety_identifier": "x"},
        {"verbosity": "low"},
        {"prediction": {"type": "content", "content": "x"}},
        {"tools": []},
        {"tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False},
        {"functions": []},
        {"echo": False},
        {"temperature": None, "stop": None, "response_format": None, "reasoning_effort": None},
    ],
    ids=str,
)
def test_what_changes_nothing_here_is_left_out(http: httpx.Client, engine: FakeEngine, fields: dict[str, Any]) -> None:
    response = http.post(PATH, json=chat(**fields))

    assert response.status_code == 200, response.text
    assert not [name for name in fields if engine.calls[0].body.get(name)]
    assert None not in engine.calls[0].body.values()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "look"}}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": ["look"]}, "tools[0]"),
        ({"echo": True}, "echo"),
        ({"function_call": "auto"}, "function_call"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": ["look"]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": "look"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL, {**CALL, "function": {"arguments": "{}"}}]}]},
            "messages[0].tool_calls[1].function",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {}}]}]},
            "messages[0].tool_calls[0].type",
        ),
    ],
)
def test_what_would_change_the_meaning_is_refused_by_name(
    http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    response = http.post(PATH, json=chat(**fields))

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert f"`{param}`" in response.json()["error"]["message"]
    assert engine.calls == []


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize(
    "said",
    [{"content": None}, {"content": ""}, {}, {"content": "hello"}, {"content": [TEXT]}, {"content": [TEXT, IMAGE]}],
    ids=["null", "empty", "absent", "string", "parts", "image"],
)
def test_every_role_says_it_in_every_form(
    http: httpx.Client, engine: FakeEngine, role: str, said: dict[str, Any]
) -> None:
    message = {"role": role, **said, **({"tool_call_id": "call1"} if role == "tool" else {})}

    response = http.post(PATH, json=chat(messages=[{"role": "user", "content": "hi"}, message]))

    assert response.status_code == 200, response.text
    asked = engine.calls[0].body["messages"][1]
    is_mended = role != "assistant" and said == {"content": None}  # vLLM takes null from the assistant only
    assert asked == (message | {"content": ""} if is_mended else message)


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ({"role": "user", "name": "alice", "content": "hi"}, None),
        ({"role": "assistant", "content": None, "refusal": "No."}, None),
        ({"role": "assistant", "content": "x", "refusal": None, "annotations": None, "audio": None}, None),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, None),
        ({"role": "assistant", "content": "x", "reasoning_content": "hm"}, None),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, None),
        ({"role": "assistant", "content": "x", "tool_calls": []}, None),
        ({"role": "assistant", "content": "x", "tool_calls": None}, None),
        ({"role": "tool", "tool_call_id": "call1", "name": "look", "content": "x"}, None),
        (
            {"role": "assistant", "tool_calls": [{"id": "call1", "function": CALL["function"]}]},
            {"role": "assistant", "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "type": None}]},
            {"role": "assistant", "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": {"a": 1}}}]},
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": '{"a":1}'}}]},
        ),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look"}}]},
            {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "look", "arguments": "{}"}}]},
        ),
    ],
    ids=str,
)
def test_history_is_passed_on_and_calls_are_spelled_out(
    http: httpx.Client, engine: FakeEngine, message: dict[str, Any], asked: dict[str, Any] | None
) -> None:
    assert http.post(PATH, json=chat(messages=[message])).status_code == 200

    assert engine.calls[0].body["messages"] == [asked or message]
    kept = json.loads(bytes(Exchange.objects.get().request))
    assert kept["messages"] == [message]  # as the client sent it


def test_arguments_that_are_nested_too_deeply_are_refused(http: httpx.Client) -> None:
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    call = b'{"id": "c", "type": "function", "function": {"name": "look", "arguments": ' + deep + b"}}"
    messages = b'[{"role": "assistant", "tool_calls": [' + call + b"]}]"

    response = http.post(PATH, content=b'{"model": "default", "messages": ' + messages + b"}")

    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("is_asked", [False, True])
def test_usage_ends_a_stream_only_when_asked_for(http: httpx.Client, *, is_asked: bool) -> None:
    options = {"stream_options": {"include_usage": True, "include_obfuscation": False}} if is_asked else {}

    events = read_events(http.post(PATH, json=chat(stream=True, **options)))

    chunks = [json.loads(event) for event in events[:-1]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if chunk.get("usage")] == [5] * is_asked
    assert [chunk["choices"] for chunk in chunks if not chunk["choices"]] == [[]] * is_asked


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("with_tool", [False, True])
def test_every_answer_has_what_strict_clients_insist_on(
    http: httpx.Client, engine: FakeEngine, *, n: int, with_tool: bool
) -> None:
    engine.script.tool = {"name": "look", "arguments": {"where": "here"}} if with_tool else None
    whole = http.post(PATH, json=chat(n=n)).json()
    chunks = [json.loads(event) for event in read_events(http.post(PATH, json=chat(n=n, stream=True)))[:-1]]

    assert {"id", "object", "created", "model", "choices", "usage"} <= set(whole)
    n_sampled = sum(len(choice.token_ids) for choice in engine.calls[0].choices)
    assert whole["usage"]["completion_tokens"] == n_sampled
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert {"id", "created", "model", "choices"} <= set(chunk)
    ends = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert ends == ["tool_calls" if with_tool else "stop"] * n
    calls = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert all(isinstance(call["function"]["arguments"], str) for call in calls)
    ids = [call["id"] for call in calls if "id" in call]
    assert len(set(ids)) == n * with_tool
    assert all(call_id.isalnum() for call_id in ids)


def read_captures() -> dict[str, dict[str, Any]]:
    """Return the bodies of the chat requests that real clients sent."""
    samples = json.loads(gzip.decompress(CAPTURES.read_bytes()))
    return {name: sample["body"] for name, sample in samples.items() if sample["path"] == PATH}


def test_every_captured_request_is_accepted(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.max_prompt_chars = 10**6
    captures = read_captures()
    refused = {}
    for name, body in captures.items():
        response = http.post(PATH, json=body | {"model": "default"})
        if response.status_code != 200:
            refused[name] = response.text

    assert len(captures) == 70
    assert refused == {}
    assert Exchange.objects.filter(is_exact=True, token_check="").count() == len(captures)
