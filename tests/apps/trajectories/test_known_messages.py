"""Requests read with what was known before are what `json.loads` reads of them, to the last spelling."""

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.trajectories import messages as chat
from apps.trajectories.known_messages import guess_conversation, read_request
from apps.trajectories.messages import KnownMessage, spell

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
texts = st.text(max_size=8) | st.sampled_from(['"}]', "\\", "é\u2028", "messages", "[{"])
message = st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": texts}, optional={"x": values})
odd = message | st.integers(0, 30) | scalars  # what no sane client sends
fields = st.dictionaries(st.sampled_from(["model", "n", "tools", "messages", "ü"]), values, max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Return one conversation's requests, each spelled in its own way: it grows, shrinks, changes and ends oddly."""
    history: list[Any] = []
    found = []
    before, behind = draw(fields), draw(fields)
    for _ in range(draw(st.integers(1, 5))):
        history = [
            *history[: draw(st.integers(0, 12))],
            *draw(st.lists(message, max_size=3)),
            *draw(st.lists(odd, max_size=1)),
        ]
        behind = draw(st.just(behind) | fields)
        separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\n")]))
        is_ascii = draw(st.booleans())
        spell_part = partial(json.dumps, separators=separators, ensure_ascii=is_ascii)
        parts = [spell_part(part)[1:-1] for part in (before, {"messages": history}, behind)]
        text = "{" + separators[0].join(filter(None, parts)) + draw(st.sampled_from(["}", "} ", "}x", "", ",}"]))
        found.append(text.encode("utf-8", "surrogatepass"))
    return found


def read_plainly(data: bytes) -> str:
    try:
        return repr(json.loads(data))
    except ValueError:
        return "not JSON"


def read(data: bytes) -> str:
    try:
        request = read_request(data, conversation="one")
    except ValueError:
        return "not JSON"
    assert request.digest == chat.hash_bytes(data)
    return repr(request.body)


@given(conversation=requests())
def test_it_reads_what_json_says(conversation: list[bytes]) -> None:
    assert list(map(read, conversation)) == list(map(read_plainly, conversation))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"1",
        b"{}",
        b"{1: 2}",
        b'{"a" 1}',
        b'{"messages": 1}',
        b'{"messages": []}',
        b'{"a": 1, "messages": [], "messages": [1]}',
        b'{"messages": [{}], "messages": null}',
        b"\xff\xfe{\x00}\x00",
        b'\xef\xbb\xbf{"messages": [{}]}',
        b'{"messages": [{"a": 1}{"b": 2}]}',
        b'{"messages": [{"a": 1},]}',
        b'{"messages": [{"a": NaN}]}',
    ],
)
def test_what_is_no_usual_request_is_read_as_json_too(data: bytes) -> None:
    assert read(data) == read_plainly(data)


def test_a_number_that_goes_on_is_another_number() -> None:
    assert read(b'{"messages": [{}, 1]}') == read_plainly(b'{"messages": [{}, 1]}')
    assert read(b'{"messages": [{}, 12]}') == read_plainly(b'{"messages": [{}, 12]}')


def test_what_is_nested_too_deeply_is_refused_as_before() -> None:
    with pytest.raises(RecursionError):
        read_request(b'{"messages": [' + b"[" * 100_000, conversation="deep")


def test_a_message_that_was_met_before_is_the_same_object() -> None:
    said = {"role": "user", "content": "hello there"}
    first = read_request(json.dumps({"messages": [said]}).encode(), conversation="a").body["messages"]
    again = read_request(json.dumps({"messages": [said, said]}, indent=1).encode(), conversation="b").body["messages"]
    assert again[0] is again[1] is first[0]


def test_callers_may_not_change_what_is_known() -> None:
    data = json.dumps({"messages": [{"role": "user"}], "model": "m"}).encode()
    request = read_request(data, conversation="c").body
    request["messages"].clear()
    request["model"] = "other"
    assert read_request(data, conversation="c").body == {"messages": [{"role": "user"}], "model": "m"}


@given(message=st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), values | texts))
def test_what_is_known_of_a_message_is_what_would_be_found(message: dict[str, Any]) -> None:
    known = KnownMessage(message, chat.dump_json(message))
    for find in (chat.text_of, chat.digest_message, chat.role_of, chat.dump_json, spell, chat.is_system):
        assert find(known) == find(message)


def test_unmarked_conversations_are_told_apart_by_their_users_first_words() -> None:
    system = {"role": "system", "content": "The same for all. " * 100}
    hello, bye = ([system, {"role": "user", "content": text}] for text in ("hello", "bye"))
    more = [*hello, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]
    names = [guess_conversation(json.dumps({"messages": messages}).encode()) for messages in (hello, more, bye)]
    assert names[0] == names[1] != names[2]
    assert guess_conversation(b"{}") == ""
