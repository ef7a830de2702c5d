"""What the tests of `/v1/responses` share: requests, events as they come, and the `openai` package as referee."""

import json
from typing import Any, cast, get_args

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

Json = dict[str, Any]
PATH = "/v1/responses"
LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
PATCH: Json = {"type": "custom", "name": "patch", "description": "Patch files."}
AGENTS: Json = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "close", "description": "Close one.", "parameters": {"type": "object"}}],
}
EVENT_TYPES: dict[str, type[BaseModel]] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind
    for kind in cast("tuple[type[BaseModel], ...]", get_args(get_args(ResponseStreamEvent)[0]))
}


def ask_for(**fields: Any) -> Json:
    """Return a small request."""
    return {"model": "otter", "input": "hello", **fields}


def ask(http: httpx.Client, *, path: str = PATH, **fields: Any) -> Json:
    """Return the response, streamed or not, checked against the package's types."""
    answer = http.post(path, json=ask_for(**fields))
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return check_events(read_typed_events(answer))
    return check_response(answer.json())


def check_response(body: Json) -> Json:
    Response.model_validate(body)
    return body


def read_typed_events(answer: httpx.Response) -> list[Json]:
    """Return the events of a finished stream; each names its type twice."""
    events = []
    for block in answer.text.split("\n\n"):
        lines = [line for line in block.splitlines() if not line.startswith(":")]
        if lines:
            head, data = lines
            event = json.loads(data.removeprefix("data: "))
            assert head == f"event: {event['type']}"
            events.append(event)
    return events


def check_events(events: list[Json]) -> Json:
    """Check shape, numbers, and that the deltas add up to what is said at the end; return the last response."""
    for number, event in enumerate(events):
        EVENT_TYPES[event["type"]].model_validate(event)
        assert event["sequence_number"] == number
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    response: Json = events[-1]["response"]
    check_response(response)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response["output"]
    assert [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"] == [
        item["id"] for item in done
    ]
    for item in done:
        assert "".join(deltas_of(events, item["id"])) == text_of(item)
    return response


def deltas_of(events: list[Json], item_id: str) -> list[str]:
    return [event["delta"] for event in events if event["type"].endswith(".delta") and event["item_id"] == item_id]


def text_of(item: Json) -> str:
    """Return everything that an output item says."""
    if item["type"] == "function_call":
        return str(item["arguments"])
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    parts = [*item.get("summary", []), *item.get("content", [])]
    return "".join(part.get("text") or part.get("refusal") or "" for part in parts)


def kinds(events: list[Json]) -> list[str]:
    """Return the events' types without the prefix, runs of one type as one."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name]
