"""Captured requests of real clients, sent again: each is accepted, shown to the model whole, and found in the pool."""

import json
from typing import Any

import httpx
import pytest

from apps.trajectories.models import Exchange, SideCall, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.messages_client import (
    COUNT_PATH,
    PATH,
    assert_exact,
    join_blocks,
    name_capture,
    read_captures,
    read_stream,
)
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
CLAUDE_CODE = [capture for capture in read_captures() if capture["run"] == "claude-code"]


def send(http: httpx.Client, capture: Json, *, body: Json | None = None) -> httpx.Response:
    """Send a captured request to this project's model."""
    body = {**(body or capture["body"]), "model": "otter"}
    return http.post(capture["path"], params=capture["query"], json=body, headers=capture["headers"])


def texts_of(value: Any) -> set[str]:
    """Return every text in a request that a model should see."""
    if isinstance(value, list):
        return {text for item in value for text in texts_of(item)}
    if isinstance(value, dict):
        shown = {name: part for name, part in value.items() if name in {"text", "content", "thinking", "messages"}}
        return {text for part in shown.values() for text in texts_of(part)} | texts_of(value.get("system", []))
    return {value} if isinstance(value, str) and not value.startswith("x-anthropic-billing-header") else set()


def test_the_captures_hold_what_this_test_is_about() -> None:
    runs = {capture["run"] for capture in read_captures()}
    roles = {message["role"] for capture in CLAUDE_CODE for message in capture["body"]["messages"]}

    assert runs == {"anthropic-sdk", "claude-code", "litellm", "openclaw-anthropic", "openclaw-native-anthropic"}
    assert roles == {"system", "user", "assistant"}
    assert any(tool.get("defer_loading") for tool in CLAUDE_CODE[0]["body"]["tools"])


@pytest.mark.parametrize("capture", read_captures(), ids=name_capture)
def test_every_captured_request_is_accepted_whole(http: httpx.Client, engine: FakeEngine, capture: Json) -> None:
    response = send(http, capture)

    assert response.status_code == 200, response.text
    if capture["path"] == COUNT_PATH:
        asked = engine.counted[0]
        assert response.json() == {"input_tokens": 10 * len(asked["messages"])}
        assert not Exchange.objects.exists()
    else:
        asked = engine.calls[0].body
        assert_exact(Exchange.objects.get(), engine)
        assert not response.headers.get("x-claw-dropped", "").replace("thinking.budget_tokens", "")
    shown = json.dumps(asked, ensure_ascii=False)
    assert all(json.dumps(text, ensure_ascii=False)[1:-1] in shown for text in texts_of(capture["body"]))
    if capture["body"].get("stream"):
        assert join_blocks(read_stream(response)) == [{"type": "text", "text": "Hello 🦦 you"}]


def test_claude_codes_sub_agents_are_sessions_of_their_own(http: httpx.Client) -> None:
    for capture in CLAUDE_CODE:
        send(http, capture)

    session = CLAUDE_CODE[0]["headers"]["x-claude-code-session-id"]
    keys = set(Exchange.objects.values_list("session_key", flat=True))
    assert session in keys
    assert any(key.startswith(f"{session}/") for key in keys)


def test_claude_codes_turns_are_one_trajectory(http: httpx.Client, engine: FakeEngine) -> None:
    """Its first run, played again with our own answers in the history, as the real client would send them."""
    first, second, third = CLAUDE_CODE[:3]
    engine.script.reasoning = "hm"
    engine.script.tool = {"name": "Bash", "arguments": {"command": "echo hello-from-tool"}}
    call = answer(send(http, first))
    engine.script.tool = None
    spoken = answer(send(http, second, body=with_answers(second["body"], [call])))
    send(http, third, body=with_answers(third["body"], [call, spoken]))

    fold_pending()

    assert not Exchange.objects.set_aside().exists()
    assert Trajectory.objects.get().session_key == first["headers"]["x-claude-code-session-id"]
    steps = list(Step.objects.order_by("id"))
    assert [step.parent_id for step in steps] == [None, steps[0].id, steps[1].id]
    assert all(step.is_exact for step in steps)


def answer(response: httpx.Response) -> Json:
    blocks = join_blocks(read_stream(response))
    assert blocks[0]["signature"]
    return {"role": "assistant", "content": blocks}


def with_answers(body: Json, answers: list[Json]) -> Json:
    """Return the body with our answers, and our ids, where those of the stub were."""
    messages = list(body["messages"])
    places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    ours: dict[str, str] = {}
    for place, said in zip(places, answers, strict=True):
        old = [block["id"] for block in messages[place]["content"] if block["type"] == "tool_use"]
        new = [block["id"] for block in said["content"] if block["type"] == "tool_use"]
        ours |= dict(zip(old, new, strict=True))
        messages[place] = said
    text = json.dumps({**body, "messages": messages})
    for old_id, new_id in ours.items():
        text = text.replace(old_id, new_id)
    return dict(json.loads(text))


def test_claude_codes_side_calls_are_known(http: httpx.Client) -> None:
    by_seq = {capture["seq"]: capture for capture in CLAUDE_CODE}
    for seq in (10, 11):  # the title, the compaction
        send(http, by_seq[seq])

    fold_pending()

    kinds = set(Step.objects.values_list("side_call", flat=True))
    assert kinds == {SideCall.TITLE, SideCall.COMPACTION}


def test_a_tool_round_without_any_mark_is_one_conversation(http: httpx.Client, engine: FakeEngine) -> None:
    engine.script.tool = {"name": "look", "arguments": {"at": "this"}}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    asked: Json = {"model": "otter", "max_tokens": 9, "tools": tools, "messages": [{"role": "user", "content": "look"}]}
    call = http.post(PATH, json=asked).json()
    engine.script.tool = None
    result = {"type": "tool_result", "tool_use_id": call["content"][0]["id"], "content": "nothing"}
    history = [*asked["messages"], {"role": "assistant", "content": call["content"]}]
    http.post(PATH, json={**asked, "messages": [*history, {"role": "user", "content": [result]}]})

    fold_pending()

    steps = list(Step.objects.order_by("id"))
    assert [step.parent_id for step in steps] == [None, steps[0].id]
    assert steps[0].finish_reason == "tool_calls"
