"""What the tests of Anthropic's dialect share: a small request, the events of a stream, the captured requests."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.trajectories.models import Exchange
from tests.fakes.engine import FakeEngine

Json = dict[str, Any]
PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
WEATHER: Json = {"name": "get_weather", "description": "Looks out.", "input_schema": {"type": "object"}}

_CAPTURES = Path(__file__).parents[2] / "data" / "captures" / "messages.json"


def ask(**fields: Any) -> Json:
    """Return a small messages request."""
    return {"model": "otter", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}], **fields}


def read_stream(response: httpx.Response) -> list[Json]:
    """Return the events of a finished stream; each says its type twice, as Anthropic's do."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.text.strip().split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def join_blocks(events: list[Json]) -> list[Json]:
    """Return the content blocks that a stream's events add up to, each opened and closed in its turn."""
    blocks: list[Json] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            _add(blocks[-1], event["delta"])
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(blocks) - 1
            is_open = False
    assert not is_open
    for block in blocks:
        text = block.pop("json")
        if text:
            block["input"] = json.loads(text)
    return blocks


def _add(block: Json, delta: Json) -> None:
    name, text = next((name, text) for name, text in delta.items() if name != "type")
    key = "json" if name == "partial_json" else name
    block[key] += text


def assert_exact(exchange: Exchange, engine: FakeEngine) -> None:
    """The pool has, byte for byte, what the engine sampled, and the chat form that it was asked."""
    call = engine.calls[-1]
    assert exchange.is_exact
    assert bytes(exchange.prompt_token_ids or b"") == pack_ids(call.prompt_token_ids)
    assert [bytes(ids) for ids in exchange.completion_token_ids] == [pack_ids(call.choices[0].token_ids)]
    assert [bytes(values) for values in exchange.completion_logprobs] == [pack_logprobs(call.choices[0].logprobs)]
    form = json.loads(bytes(exchange.chat_request or b""))
    assert form == {name: call.body[name] for name in ("messages", "tools") if name in call.body}


@cache
def read_captures() -> tuple[Json, ...]:
    """Return captured requests of real clients: run, seq, path, query, headers, body."""
    return tuple(json.loads(_CAPTURES.read_text()))


def name_capture(capture: Json) -> str:
    return f"{capture['run']}-{capture['seq']}"
