"""Of a conversation's request only what is new in it is read, and what is read is what is there."""

import json
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.gateway import spelled_messages
from apps.gateway.chat.shapes import KNOWN, read_chat_request
from apps.gateway.dialect import ModelRequest
from apps.gateway.errors import ApiError
from apps.gateway.known_talks import KnownTalks
from apps.gateway.spelled_messages import Reading, SpelledReader
from tests.apps.gateway.conftest import chat
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"
READER = SpelledReader(KNOWN)
SCOPE = "proj_1"
LONG = "“one, two” – {and} [more] – \\ and 🦦. " * 300
SYSTEM = {"role": "system", "content": LONG}
FIRST = [SYSTEM, {"role": "user", "content": "Hello"}]
ANSWER = {"role": "assistant", "content": "I am the assistant, not {the} user."}
NEXT = {"role": "user", "content": 'They said: "assistant"'}

tricky = st.sampled_from(['"assistant"', '{"role"', '},{"role": "user"}', "]", ",", '"', "\\", "{", '"messages": ['])
texts = st.one_of(st.text(max_size=6), tricky)
contents = st.one_of(
    texts, st.none(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2)
)
calls = st.lists(
    st.fixed_dictionaries({"id": texts, "function": st.fixed_dictionaries({"name": texts, "arguments": texts})}),
    max_size=2,
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "tool"]), "content": contents}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": contents, "tool_calls": calls}),
    st.fixed_dictionaries({"content": texts, "role": st.just("assistant")}),
    st.fixed_dictionaries({"role": st.just("user"), "x": st.lists(st.fixed_dictionaries({"role": texts}), max_size=2)}),
    st.fixed_dictionaries({"role": st.just("user"), "content": texts, "role2": st.lists(st.integers(), max_size=2)}),
)
# How each request goes on from the one before: how many of its last messages are gone, and which are new.
turns = st.lists(st.tuples(st.integers(0, 3), st.lists(messages, max_size=3)), min_size=1, max_size=8)


def read(messages: Any, known: KnownTalks, *, scope: str = SCOPE, **style: Any) -> ModelRequest:
    return read_chat_request(json.dumps({"model": "otter", "messages": messages}, **style).encode(), known, scope=scope)


def look(messages: Any, known: KnownTalks, *, scope: str = SCOPE, **style: Any) -> Reading:
    raw = json.dumps({"model": "otter", "messages": messages}, **style).encode()
    return READER.read(raw, known, scope=scope)


@given(turns=turns, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_whatever_goes_on_is_read_as_it_is(turns: list[Any], indent: int | None, ascii_only: bool) -> None:
    known = KnownTalks()
    said: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spelled_messages, "SHORTEST", 0)
        for n_gone, new in turns:
            said = said[: max(0, len(said) - n_gone)] + new
            raw = json.dumps({"messages": said, "model": "otter"}, indent=indent, ensure_ascii=ascii_only).encode()
            reading = READER.read(raw, known, scope=SCOPE)
            for talk in reading.talks:
                known.keep(talk, scope=SCOPE)
            assert reading.body == orjson.loads(raw)
            assert orjson.loads(reading.spelled) == said


@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"indent": 2}, {"ensure_ascii": False}])
def test_a_request_that_goes_on_is_known_up_to_the_answer(style: dict[str, Any]) -> None:
    known = KnownTalks()
    said = list(FIRST)
    for _ in range(3):
        read(said, known, **style)
        n_said, said = len(said), [*said, ANSWER, NEXT]
        assert look(said, known, **style).n_known == n_said


def test_what_several_answers_and_results_of_tools_follow_is_known() -> None:
    known = KnownTalks()
    read(FIRST, known)
    assert look([*FIRST, ANSWER, ANSWER, NEXT], known).n_known == 2


def test_a_word_at_the_end_that_the_next_request_lacks_hides_nothing() -> None:
    known = KnownTalks()
    read([*FIRST, {"role": "user", "content": "The time is 12:00."}], known)
    assert look([*FIRST, ANSWER, NEXT], known).n_known == 2


def test_many_go_on_from_one() -> None:
    known = KnownTalks()
    read(FIRST, known)
    for word in ("one", "two"):
        said = [*FIRST, {"role": "assistant", "content": word}, NEXT]
        assert look(said, known).n_known == 2
        read(said, known)


def test_what_was_edited_is_read_anew() -> None:
    known = KnownTalks()
    read([*FIRST, ANSWER, NEXT], known)
    edited = [{"role": "system", "content": LONG.replace("one", "two", 1)}, *FIRST[1:], ANSWER, NEXT, ANSWER, NEXT]
    reading = look(edited, known)
    assert reading.n_known == 0
    assert reading.body["messages"] == edited


def test_one_projects_talk_is_nothing_to_another() -> None:
    known = KnownTalks()
    read(FIRST, known)
    assert look([*FIRST, ANSWER, NEXT], known, scope="proj_2").n_known == 0


def test_what_is_wrong_with_a_new_message_is_told_by_its_place() -> None:
    known = KnownTalks()
    read(FIRST, known)
    bad = {"role": "narrator", "content": "Hm."}
    for _ in range(2):  # the first refusal must not have made it known
        with pytest.raises(ApiError) as caught:
            read([*FIRST, ANSWER, bad], known)
        assert caught.value.param == "messages[3].role"


@pytest.mark.parametrize("between", [", ,", " ", ",,", ",]", "},"])
def test_what_is_no_json_is_refused_behind_a_known_talk(between: str) -> None:
    known = KnownTalks()
    read(FIRST, known)
    start = json.dumps({"model": "otter", "messages": FIRST})[:-2]
    for more in (between + json.dumps(ANSWER), ", " + json.dumps(ANSWER) + between + json.dumps(NEXT)):
        with pytest.raises(ApiError) as caught:
            read_chat_request(f"{start}{more}]}}".encode(), known, scope=SCOPE)
        assert caught.value.code == "invalid_json"


def test_what_was_mended_for_an_engine_is_mended_each_time(http: httpx.Client, engine: FakeEngine) -> None:
    """The messages in memory stay as they were sent."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"cut off'}}
    said = [*FIRST, {"role": "assistant", "content": None, "tool_calls": [call]}]
    said.append({"role": "tool", "tool_call_id": "c1", "content": "4"})
    for _ in range(3):
        assert "x-claw-mended" in http.post(PATH, json=chat(messages=said)).headers
        said += [ANSWER, NEXT]
    asked = [request.body["messages"] for request in engine.calls]
    assert [len(messages) for messages in asked] == [4, 6, 8]
    for messages in asked:
        arguments = messages[2]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments) == {"unparsed_arguments": '{"cut off'}
