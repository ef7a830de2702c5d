"""Input items and tools as the model is to see them: no server needed."""

import base64
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from apps.gateway.errors import ApiError
from apps.gateway.responses.freeform import FreeformReader
from apps.gateway.responses.history import History, strip_instructions
from apps.gateway.responses.logprobs import count_tokens_through, cut_logprobs
from apps.gateway.responses.naming import answer_of_item, name_item
from apps.gateway.responses.sealing import seal_reasoning, unseal_reasoning
from apps.gateway.responses.tools import read_tools
from tests.apps.gateway.responses import AGENTS, LOOK, PATCH, Json

ANSWER = "resp_01k9x3v5e7abcdefghjkmnpqrs"
PROJECT = "proj_of_mine"
OTHER = "resp_01k9x3v5e7abcdefghjkmnpqrt"


def read(*items: Any, instructions: str | None = None, earlier: list[Json] | None = None) -> list[Json]:
    """Return the items as chat messages."""
    history = History(earlier or [], project_id=PROJECT)
    for place, item in enumerate(items):
        history.add(item, where=f"input[{place}]")
    return history.finish(instructions)


def user(content: Any) -> Json:
    return {"role": "user", "content": content}


def said(text: str, *, of: str = "", place: int = 0) -> Json:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return item | ({"id": name_item("msg", response_id=of, place=place)} if of else {})


def thought(text: str, *, of: str = "", place: int = 0) -> Json:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
    return item | ({"id": name_item("rs", response_id=of, place=place)} if of else {})


def call(call_id: str, *, of: str = "", place: int = 0) -> Json:
    item = {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    return item | ({"id": name_item("fc", response_id=of, place=place)} if of else {})


def output(call_id: str, content: Any = "ok") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": content}


def chat_call(call_id: str) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}


def test_a_message_needs_no_type_and_one_text_is_a_string() -> None:
    parts = [{"type": "input_text", "text": "one"}]
    assert read(user("hi"), {"type": "message", "status": "completed", "id": "msg_1", **user(parts)}) == [
        user("hi"),
        user("one"),
    ]


def test_several_parts_stay_parts_and_images_are_passed_on() -> None:
    url = "data:image/png;base64,AAAA"
    parts = [
        {"type": "input_text", "text": "what is this?"},
        {"type": "input_image", "image_url": url, "detail": "low"},
        {"type": "input_image", "image_url": url, "detail": "original"},
    ]
    assert read(user(parts)) == [
        user(
            [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                {"type": "image_url", "image_url": {"url": url}},
            ]
        )
    ]


def test_texts_before_the_conversation_are_one_system_message() -> None:
    developer = {
        "role": "developer",
        "content": [{"type": "input_text", "text": "two"}, {"type": "input_text", "text": "three"}],
    }
    later = {"role": "developer", "content": "later"}
    assert read(developer, user("hi"), later, instructions="one") == [
        {"role": "system", "content": "one\n\ntwo\nthree"},
        user("hi"),
        {"role": "system", "content": "later"},
    ]


def test_what_one_answer_said_is_one_message() -> None:
    assert read(user("hi"), thought("hm"), said("Let me look."), call("a"), call("b"), output("a"), output("b")) == [
        user("hi"),
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "hm",
            "tool_calls": [chat_call("a"), chat_call("b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "tool", "tool_call_id": "b", "content": "ok"},
    ]


def test_calls_without_text_have_none() -> None:
    assert read(call("a"), output("a"))[0] == {"role": "assistant", "content": None, "tool_calls": [chat_call("a")]}


@pytest.mark.parametrize(
    ("items", "contents"),
    [
        ([said("a"), said("b")], ["a", "b"]),
        ([said("a"), thought("hm"), said("b")], ["a", "b"]),
        ([call("x"), said("after a call")], ["after a call"]),
        ([said("a", of=ANSWER), said("b", of=ANSWER, place=1)], ["ab"]),
        ([said("a", of=ANSWER), thought("hm", of=ANSWER, place=1), said("b", of=ANSWER, place=2)], ["ab"]),
        ([said("a", of=ANSWER), call("x", of=OTHER)], ["a", None]),
        ([said("a"), call("x")], ["a"]),
    ],
)
def test_where_one_answer_ends_and_the_next_begins(items: list[Json], contents: list[str | None]) -> None:
    assert [message["content"] for message in read(*items)] == contents


def test_an_outputs_parts_are_kept() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "https://example.org/x.png"}]
    assert read(output("a", parts))[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}},
    ]
    assert read(output("a", parts[:1]))[0]["content"] == "a"


def test_thoughts_come_from_where_they_are_whole() -> None:
    sealed = {"encrypted_content": seal_reasoning("all of it", project_id=PROJECT)}
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    full = {"content": [{"type": "reasoning_text", "text": "full"}]}
    for fields, expected in (({}, "short"), (full, "full"), (full | sealed, "all of it")):
        assert read({**item, **fields}, said("a"))[0]["reasoning_content"] == expected


def test_thoughts_that_others_sealed_are_left_out_and_told() -> None:
    history = History([], project_id=PROJECT)
    history.add({"type": "reasoning", "summary": [], "encrypted_content": "ZW5jcnlwdGVk"}, where="input[0]")
    history.add(said("a"), where="input[1]")
    assert history.finish(None) == [{"role": "assistant", "content": "a"}]
    assert list(history.dropped) == ["input[0].encrypted_content"]


def test_sealed_thoughts_survive_and_nothing_else_is_taken_for_one(settings: Settings) -> None:
    sealed = seal_reasoning("Größe 🦦\n", project_id=PROJECT)
    assert unseal_reasoning(sealed, project_id=PROJECT) == "Größe 🦦\n"
    assert unseal_reasoning(sealed, project_id="proj_other") is None
    assert "Größe".encode() not in base64.urlsafe_b64decode(sealed)
    for text in ("", "ZW5jcnlwdGVk", "not base 64!", "ö", sealed[:-6] + "AAAA=="):
        assert unseal_reasoning(text, project_id=PROJECT) is None
    settings.SECRET_KEY = "another key than before"
    assert unseal_reasoning(sealed, project_id=PROJECT) is None


def test_what_other_servers_did_is_left_out() -> None:
    history = History([], project_id=PROJECT)
    history.add({"type": "web_search_call", "id": "ws_1", "status": "completed"}, where="input[0]")
    assert history.finish(None) == []
    assert list(history.dropped) == ["input[0]:web_search_call"]


def test_an_earlier_requests_instructions_are_taken_out_again() -> None:
    developer = {"role": "developer", "content": "Rules."}
    assert strip_instructions(read(user("hi"), instructions="Old."), "Old.") == [user("hi")]
    merged = strip_instructions(read(developer, user("hi"), instructions="Old."), "Old.")
    assert merged == [{"role": "system", "content": "Rules."}, user("hi")]
    assert strip_instructions(merged, None) == merged
    assert read(user("and?"), earlier=merged, instructions="New.")[0]["content"] == "New.\n\nRules."


def test_an_items_id_tells_whose_it_is() -> None:
    assert answer_of_item(name_item("msg", response_id=ANSWER, place=17)) == ANSWER
    for item_id in ("msg_1", "msg_01a22f46-c854-7523-adba-0260e04204ae", "", None, 7, "resp"):
        assert answer_of_item(item_id) == ""


def test_tools_become_functions_and_their_names_come_back() -> None:
    book = read_tools([LOOK, PATCH, AGENTS, {"type": "web_search"}], "auto")
    assert [tool["function"]["name"] for tool in book.functions] == ["look", "patch", "agents__close"]
    assert book.functions[0]["function"]["strict"] is False
    assert "strict" not in book.functions[2]["function"]
    name = book.name_of("agents__close")
    assert (name.name, name.namespace, name.is_custom) == ("close", "agents", False)
    assert book.name_of("patch").is_custom
    assert book.name_of("made_up").name == "made_up"
    assert book.shown == [LOOK, PATCH, AGENTS]
    assert list(book.dropped) == ["tools[3]:web_search"]


def test_a_grammar_is_shown_to_the_model() -> None:
    shape = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    book = read_tools([{**PATCH, "format": shape}], None)
    assert book.functions[0]["function"]["description"].endswith("lark grammar:\nstart: /a+/")
    assert list(book.dropped) == ["tools[0].format"]


def test_what_a_client_calls_a_tool_makes_no_header() -> None:
    book = read_tools([{"type": "odd\r\nx-evil: 1 🦦"}], None)
    assert list(book.dropped) == ["tools[0]:oddx-evil1"]


@pytest.mark.parametrize("choice", ["sometimes", {}, {"type": ["function"]}, 3, {"type": "function", "name": {}}])
def test_an_odd_choice_is_refused(choice: Any) -> None:
    with pytest.raises(ApiError, match="tool_choice"):
        read_tools([LOOK], choice)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "plain"}', "plain"),
        ('{ "input" :"a\\"b\\\\c\\nd\\u00e9"}', 'a"b\\c\ndé'),
        ('{"input": "\\ud83e\\udda6 otter 🦦"}', "🦦 otter 🦦"),
        ('{"input": "a", "more": 1}', "a"),
        ('{"input": "cut off he', "cut off he"),
        ('{"input": "cut off \\u00', "cut off "),
        ('{"input": "half \\ud83e"}', "half �"),
        ('{"patch": "other"}', '{"patch": "other"}'),
        ("not JSON", "not JSON"),
        ("", ""),
    ],
)
def test_a_freeform_text_is_read_as_it_is_written(arguments: str, text: str, size: int) -> None:
    reader = FreeformReader()
    heard = [reader.feed(arguments[start : start + size]) for start in range(0, len(arguments), size)]
    assert "".join([*heard, reader.end()]) == text


def test_logprobs_are_those_of_the_text() -> None:
    tokens = [{"token": token} for token in ("<think>", "ab", "</think>", "a", "b", "c", "<end>")]
    assert [item["token"] for item in cut_logprobs(tokens, "abc")] == ["a", "b", "c"]
    assert [item["token"] for item in cut_logprobs(tokens, "ab")] == ["a", "b"]
    assert cut_logprobs(tokens, "nowhere") == []
    assert cut_logprobs(tokens, "") == []
    texts = [item["token"] for item in tokens]
    assert count_tokens_through(texts, "ab") == 2
    assert count_tokens_through(texts, "nowhere") == 0
    assert count_tokens_through(texts, "") == 0
