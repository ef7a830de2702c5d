"""How real clients go on from an answer: each in its own way, each the same conversation in the pool.

The ways are those of captured requests (tests/data/captures/responses.json), which are also sent as they are.
"""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from apps.trajectories.models import Exchange, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.apps.gateway.responses import LOOK, PATH, Json, ask, check_events, check_response, read_typed_events
from tests.apps.gateway.test_to_the_pool import assert_exact, fold
from tests.fakes.engine import FakeEngine

CAPTURES: list[Json] = json.loads((Path(__file__).parents[2] / "data" / "captures" / "responses.json").read_text())
SEALED = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}, "store": False}
Replay = Callable[[list[Json], bool], list[Json]]


def replay_codex(items: list[Json], is_latest: bool) -> list[Json]:
    """Everything comes back as it was."""
    return [{**item, "content": None} if item["type"] == "reasoning" else item for item in items]


def replay_openclaw(items: list[Json], is_latest: bool) -> list[Json]:
    """No ids; of older thoughts only what is sealed; arguments written anew."""
    kept = copy.deepcopy(items)
    for item in kept:
        del item["id"], item["status"]
        if item["type"] == "reasoning" and not is_latest:
            item["summary"] = []
        if item["type"] == "function_call":
            item["arguments"] = json.dumps(json.loads(item["arguments"]), separators=(",", ":"))
    return kept


def replay_openai_agents(items: list[Json], is_latest: bool) -> list[Json]:
    """The package's own objects, without what they do not say."""
    return [{name: value for name, value in item.items() if name != "encrypted_content"} for item in items]


def replay_pydantic_ai(items: list[Json], is_latest: bool) -> list[Json]:
    """Thoughts as prose, text as a string."""
    kept: list[Json] = []
    for item in items:
        if item["type"] == "reasoning":
            text = f"<think>\n{item['summary'][0]['text']}\n</think>"
            kept.append({"role": "assistant", "content": text})
        elif item["type"] == "message":
            kept.append({"role": "assistant", "content": item["content"][0]["text"]})
        else:
            kept.append({name: item[name] for name in ("type", "name", "arguments", "call_id")})
    return kept


REPLAYS = [replay_codex, replay_openclaw, replay_openai_agents, replay_pydantic_ai]


@pytest.mark.parametrize("replay", REPLAYS)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("thinks", [False, True])
def test_a_tool_task_is_one_chain(
    http: httpx.Client, engine: FakeEngine, replay: Replay, is_streamed: bool, thinks: bool
) -> None:
    engine.script.reasoning = "I consider it." if thinks else ""
    fields: Json = {"stream": is_streamed, "tools": [LOOK], **SEALED}
    items: list[Json] = [{"role": "developer", "content": "Rules."}, {"role": "user", "content": "look twice"}]
    engine.script.tool = {"name": "look", "arguments": {"where": "here"}}
    engine.script.more_tools = [{"name": "look", "arguments": {"where": "there"}}]
    called = ask(http, input=items, **fields)["output"]
    calls = [item for item in called if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]
    engine.script.tool, engine.script.more_tools = None, []
    answered = ask(http, input=[*items, *replay(called, True), *results], **fields)["output"]
    question = {"role": "user", "content": "and now?"}
    history = [*items, *replay(called, False), *results, *replay(answered, True), question]
    ask(http, input=history, **fields)

    views = fold()

    assert_exact(views, engine)
    assert [view.row.parent_id for view in views] == [None, views[0].row.id, views[1].row.id]
    asked = engine.calls[-1].body["messages"]
    assert asked == views[2].messages
    roles = [message["role"] for message in asked]
    assert roles[-5:] == ["assistant", "tool", "tool", "assistant", "user"] or replay is replay_pydantic_ai
    (calling,) = [message for message in asked if message.get("tool_calls")]
    assert [call["id"] for call in calling["tool_calls"]] == [call["call_id"] for call in calls]
    if thinks and replay is not replay_pydantic_ai:
        assert calling["reasoning_content"] == "I consider it."


def send(http: httpx.Client, capture: Json) -> Json:
    """Send a captured request as it was, but to a model that we have; return the response."""
    body = {**capture["body"], "model": "otter"}
    answer = http.post(PATH, json=body, headers=capture["headers"])
    assert answer.status_code == 200, answer.text
    return check_events(read_typed_events(answer)) if body.get("stream") else check_response(answer.json())


@pytest.mark.parametrize(
    "capture",
    [capture for capture in CAPTURES if not capture["body"].get("previous_response_id")],
    ids=lambda capture: f"{capture['run']}-{capture['seq']}",
)
def test_what_clients_were_seen_to_send_is_answered(http: httpx.Client, engine: FakeEngine, capture: Json) -> None:
    response = send(http, capture)

    assert response["status"] == "completed"
    body, asked = capture["body"], engine.calls[-1].body
    tools = [tool for tool in body.get("tools") or [] if tool["type"] in {"function", "namespace"}]
    names = [name for tool in tools for name in _function_names(tool)]
    assert [tool["function"]["name"] for tool in asked.get("tools", [])] == names
    items: Any = body["input"] if isinstance(body["input"], list) else [{"role": "user"}]
    calls = [call["id"] for message in asked["messages"] for call in message.get("tool_calls", [])]
    assert calls == [item["call_id"] for item in items if item.get("type") == "function_call"]
    n_outputs = sum(item.get("type") == "function_call_output" for item in items)
    assert sum(message["role"] == "tool" for message in asked["messages"]) == n_outputs
    assert sum(message["role"] == "user" for message in asked["messages"]) == sum(
        item.get("role") == "user" for item in items
    )
    exchange = Exchange.objects.get()
    assert (exchange.dialect, exchange.is_exact) == ("responses", True)
    assert json.loads(bytes(exchange.chat_request or b""))["messages"] == asked["messages"]


def _function_names(tool: Json) -> list[str]:
    if tool["type"] == "function":
        return [tool["name"]]
    return [f"{tool['name']}__{inner['name']}" for inner in tool["tools"]]


def test_codex_names_its_sessions(http: httpx.Client) -> None:
    for capture in CAPTURES:
        if capture["run"] == "codex":
            send(http, capture)
    fold_pending()
    assert not Exchange.objects.set_aside().exists()
    threads = {capture["headers"]["thread-id"] for capture in CAPTURES if capture["run"] == "codex"}
    assert set(Trajectory.objects.values_list("session_key", flat=True)) == threads
