"""The messages of a long chat request reach the engine in the client's own bytes, and nothing else of it does."""

import json
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway import spelled_messages
from apps.gateway.chat.shapes import KNOWN, read_chat_request
from apps.gateway.known_talks import KnownTalks
from apps.gateway.spelled_messages import SpelledReader, write_spelled
from tests.apps.gateway.conftest import chat, only_exchange
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"
LONG = "She said “one, two” – {and} [more] – \\ and 🦦. " * 300
READER = SpelledReader(KNOWN)
SCOPE = "proj_1"

names = st.sampled_from(["messages", "model", "stop", "tools", "metadata", "stream", "role", "content"])
texts = st.one_of(
    st.text(max_size=8), st.sampled_from(['"messages": [', '],"model":', "]", '"messages"', "{", "\\", "\\u0000"])
)
values = st.recursive(
    st.one_of(texts, st.integers(-(2**53), 2**53), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(names, texts), inner, max_size=3)),
    max_leaves=8,
)
bodies = st.lists(st.tuples(names, values), max_size=6)


def spell(members: list[tuple[str, Any]], **style: Any) -> bytes:
    """Return an object of these members, of which some may be there twice."""
    inner = [f"{json.dumps(name)} : {json.dumps(value, **style)}" for name, value in members]
    return f" {{{' , '.join(inner)}}} ".encode()


@given(members=bodies, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_whatever_is_sent_is_read_as_it_is_and_written_as_it_was(
    members: list[tuple[str, Any]], ascii_only: bool, indent: int | None
) -> None:
    raw = spell(members, ensure_ascii=ascii_only, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelled_messages, "SHORTEST", 0)
        reading = READER.read(raw, KnownTalks(), scope=SCOPE)
    body, spelled = reading.body, bytes(reading.spelled)

    assert body == orjson.loads(raw)
    assert list(body) == list(orjson.loads(raw))
    if spelled:
        assert spelled in raw
        assert orjson.loads(spelled) == body["messages"]


@pytest.mark.parametrize(
    "members",
    [
        [("model", "otter"), ("messages", [{"role": "user", "content": LONG}])],
        [("messages", [{"role": "user", "content": LONG}]), ("model", "otter"), ("stop", ["]"]), ("tools", [])],
        [("messages", [{"role": "user", "content": [{"type": "text", "text": LONG}]}]), ("stream", True)],
        [("stop", ["]", '"messages": [']), ("messages", [{"role": "user", "content": LONG}]), ("user", "x")],
    ],
)
def test_messages_are_found_wherever_clients_put_them(members: list[tuple[str, Any]]) -> None:
    raw = spell(members)
    reading = READER.read(raw, KnownTalks(), scope=SCOPE)
    body, spelled = reading.body, reading.spelled
    assert body == dict(members)
    assert spelled == json.dumps(dict(members)["messages"]).encode()
    others = {**body, "model": "adapter", "logprobs": True}
    written = write_spelled(others, spelled)
    assert orjson.loads(written) == others
    assert written.count(b'"model"') == 1


@pytest.mark.parametrize(
    "members",
    [
        [("metadata", {"messages": [LONG]}), ("messages", [{"role": "user", "content": "hi"}])],
        [("metadata", {"messages": [LONG]}), ("messages", None)],
        [("messages", [{"role": "user", "content": LONG}]), ("messages", [])],
        [("metadata", {"messages": [LONG], "model": "theirs"})],
    ],
)
def test_other_messages_are_not_taken_for_the_requests_own(members: list[tuple[str, Any]]) -> None:
    raw = spell(members)
    reading = READER.read(raw, KnownTalks(), scope=SCOPE)
    assert reading.body == orjson.loads(raw)
    assert not reading.spelled


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_engine_gets_what_was_said_and_the_adapters_name(
    http: httpx.Client, engine: FakeEngine, is_streamed: bool
) -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [call("{}")]}
    messages = [{"role": "user", "content": LONG}, answer, {"role": "tool", "tool_call_id": "c1", "content": "4"}]
    sent = chat(messages=messages, stream=is_streamed, temperature=0.5, user="somebody")
    raw = json.dumps(sent, ensure_ascii=True, indent=1).encode()
    # Twice: the last one counts, and no engine may hear of the other.
    raw = raw.replace(b'"user": "somebody"', b'"user": "somebody", "model": "theirs", "model": "otter"')
    assert http.post(PATH, content=raw).status_code == 200

    asked = engine.calls[0].body
    assert asked["messages"] == messages
    assert asked["model"] != "theirs"
    assert asked["return_token_ids"] is True
    assert "user" not in asked
    assert bytes(only_exchange().request) == raw


def test_what_is_mended_is_written_anew(http: httpx.Client, engine: FakeEngine) -> None:
    answer = {"role": "assistant", "content": "", "tool_calls": [call('{"cut off')]}
    said = [{"role": "user", "content": LONG}, answer, {"role": "tool", "tool_call_id": "c1", "content": "4"}]
    response = http.post(PATH, json=chat(messages=said))
    assert response.status_code == 200
    assert "x-claw-mended" in response.headers
    asked = engine.calls[0].body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(asked) == {"unparsed_arguments": '{"cut off'}


def test_it_refuses_a_long_message_that_is_nested_too_deeply(http: httpx.Client) -> None:
    parts = b"[" * 300 + b"]" * 300
    raw = b'{"model": "otter", "messages": [{"role": "user", "content": [{"type": "text", "text": "%b", "x": %b}]}]}'
    response = http.post(PATH, content=raw % (b"a" * 10_000, parts))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_a_short_request_is_read_in_one_go() -> None:
    request = read_chat_request(json.dumps(chat()).encode(), KnownTalks(), scope=SCOPE)
    assert request.spelled_messages == b""


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "add", "arguments": arguments}}
