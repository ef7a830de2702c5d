"""What counts as the same message, and what does not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.trajectories import messages as chat

CARRIER = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nbusy\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"

REMINDER = {"type": "text", "text": "<system-reminder>\ngit\n</system-reminder>"}
RUNTIME = "\n\nRuntime: agent=main | session=agent:main:explicit:one | sessionId=one | host=vm | shell=bash"


def call(call_id: str, arguments: Any) -> dict[str, Any]:
    tool_call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None}),
        ({"role": "assistant", "content": None}, {"role": "assistant"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "refusal": None}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a", "reasoning_content": "hm"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "user"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "a"},
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
            {"role": "user", "content": [{"image_url": {"url": "u"}, "type": "image_url", "cache_control": {}}]},
        ),
        ({"role": "system", "content": "a"}, {"role": "developer", "content": "a"}),
        (call("call_1_0", '{"command": "x"}'), call("call10", '{"command":"x"}')),
        (call("c", '{"a": 1, "b": 2}'), call("c", '{"b":2,"a":1}')),
        (call("c", '{"a": 1}'), call("c", {"a": 1})),
        (
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "tool", "tool_call_id": "call1", "content": "x"},
        ),
        ({"role": "user", "content": f"a{CARRIER}"}, {"role": "user", "content": "a"}),
    ],
)
def test_these_are_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert chat.digest_message(one) == chat.digest_message(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
        ({"role": "user", "content": ["a", "b"]}, {"role": "user", "content": "a\nb"}),
        (call("c", '{"a": 1}'), call("c", '{"a": 2}')),
        (call("c", '{"a": 1}'), call("d", '{"a": 1}')),
        ({"role": "tool", "tool_call_id": "a", "content": "x"}, {"role": "tool", "tool_call_id": "b", "content": "x"}),
        ({"role": "user", "content": '{"type":"image"}'}, {"role": "user", "content": [{"type": "image"}]}),
    ],
)
def test_these_are_not(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert chat.digest_message(one) != chat.digest_message(other)


@pytest.mark.parametrize("content", [CARRIER, [{"type": "text", "text": CARRIER}], f"{CARRIER}{CARRIER}"])
def test_a_message_that_is_only_passing_leaves_no_trace(content: Any) -> None:
    assert chat.digest_message({"role": "user", "content": content}) is None


def test_a_users_empty_message_does_leave_one() -> None:
    assert chat.digest_message({"role": "user", "content": ""}) is not None


@pytest.mark.parametrize(
    ("messages", "title"),
    [
        ([{"role": "system", "content": "s"}, {"role": "user", "content": " two\n words "}], "two words"),
        ([{"role": "user", "content": CARRIER}, {"role": "user", "content": "real"}], "real"),
        ([{"role": "user", "content": "real"}, {"role": "user", "content": CARRIER}], "real"),
        ([{"role": "user", "content": "example"}, {"role": "assistant"}, {"role": "user", "content": "real"}], "real"),
        ([{"role": "user", "content": f"[Tue 2026-12-01 01:34 UTC] real{RUNTIME}"}], "real"),
        ([{"role": "user", "content": "[Tue] what is Runtime: agent=main"}], "[Tue] what is Runtime: agent=main"),
        ([{"role": "user", "content": [REMINDER, REMINDER, {"type": "text", "text": "real"}]}], "real"),
        ([{"role": "user", "content": [REMINDER]}], "<system-reminder> git </system-reminder>"),
        ([{"role": "user", "content": "x" * 500}], "x" * 200),
        ([{"role": "user", "content": "nul\x00 and \ud800 half"}], "nul and half"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], ""),
        ([], ""),
        ([None, 3, "x"], ""),
    ],
)
def test_the_title_is_what_the_user_asked(messages: list[Any], title: str) -> None:
    assert " ".join(chat.make_title(messages).split()) == title


@given(st.lists(st.text(max_size=3), max_size=5))
def test_digests_are_hashed_as_any_texts_are(texts: list[str]) -> None:
    digests = [chat.hash_text(text) for text in texts]
    assert chat.hash_digests(digests) == chat.hash_text(*digests)
