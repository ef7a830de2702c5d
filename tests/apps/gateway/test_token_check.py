"""Do the sampled tokens and the answer tell the same? Spelled as the models and parsers of several families do."""

import json
from typing import Any

import pytest

from apps.gateway.token_check import SWALLOWED, TEXT, TOOL_CALL, Expectations, Said, expect_of, find_difference

CALL = ("get_weather", '{"city": "Oslo"}')
HERMES = '<tool_call>{"name": "get_weather", "arguments": {"city": "Oslo"}}</tool_call>'
END = "<|im_end|>"


def find(sampled: str, *texts: str | list[str], calls: Any = (), expectations: Any = None, **ending: Any) -> str:
    """Return the difference; what was sampled comes in tokens of three characters and the mark of the end."""
    body, has_end, _ = sampled.partition(END)
    tokens = [body[start : start + 3] for start in range(0, len(body), 3)] + [END] * bool(has_end)
    said = Said(
        texts=[[text] if isinstance(text, str) else text for text in texts],
        calls=list(calls),
        finish_reason=ending.get("finish_reason", "stop"),
        stop_reason=ending.get("stop_reason"),
    )
    return find_difference(said, tokens, expectations or Expectations())


@pytest.mark.parametrize(
    ("sampled", "texts"),
    [
        (f"Hello you{END}", ["Hello you"]),
        (f"  Hello\n{END}", ["Hello"]),  # trimmed
        (f"<think>well</think>\n\nYes{END}", ["well", "Yes"]),
        ("[THINK]well[/THINK]Yes</s>", ["well", "Yes"]),
        ("<|channel|>analysis<|message|>well<|end|><|start|>assistant<|channel|>final<|message|>Yes", ["well", "Yes"]),
        (f"Hello{END}", [["Hel", "lo"]]),
        ("Hello<|im_start|>you", [["Hello", "you"]]),  # a mark in the middle is not shown
        ("Helloyou", ["Hello you"]),  # some tokenizers' texts lose their leading spaces
        ("日本 🦦", ["日本 🦦"]),
        (f"{END}", []),
    ],
)
def test_texts_that_were_sampled_raise_no_doubt(sampled: str, texts: list[Any]) -> None:
    assert find(sampled, *texts) == ""


@pytest.mark.parametrize(
    "sampled",
    [
        HERMES,
        f"{HERMES}\n{HERMES}",
        '[TOOL_CALLS]get_weather{"city": "Oslo"}',
        '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]',
        '[get_weather(city="Oslo")]',
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>",
        '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"Oslo"}',
        '<\uff5ctool_calls\uff5c>function<\uff5csep\uff5c>get_weather\n```json\n{"city": "Oslo"}\n```<\uff5cend\uff5c>',
    ],
)
def test_calls_that_were_sampled_raise_no_doubt_in_any_familys_spelling(sampled: str) -> None:
    assert find(sampled, calls=[CALL], finish_reason="tool_calls") == ""
    assert find(sampled + END, calls=[CALL], finish_reason="tool_calls") == ""
    assert find(f"I look.{sampled}", "I look.", calls=[CALL], finish_reason="tool_calls") == ""


def test_values_may_be_escaped_and_respaced() -> None:
    arguments = {"text": "a\nb é", "n": 3, "deep": {"list": [True, None, 0.5]}}
    sampled = f'<tool_call>{{"name": "note", "arguments": {json.dumps(arguments)}}}</tool_call>'
    compact = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)

    assert find(sampled, calls=[("note", compact)], finish_reason="tool_calls") == ""


@pytest.mark.parametrize(
    ("sampled", "texts", "calls", "doubt"),
    [
        (f"Hello{END}", ["Bye"], [], TEXT),
        (f"日語{END}", ["日本語"], [], TEXT),
        (f"<think>well</think>Yes{END}", ["Yes", "well"], [], TEXT),
        (HERMES, [], [("get_wind", CALL[1])], TOOL_CALL),
        (HERMES, [], [("get_weather", '{"city": "Rome"}')], TOOL_CALL),
        (HERMES, [], [("get_weather", '{"town": "Oslo"}')], TOOL_CALL),
        (HERMES, [], [("get_weather", '{"city": "Rome')], TOOL_CALL),
        (HERMES, [], [], SWALLOWED),
        (f"I look.{HERMES}{END}", [], [CALL], SWALLOWED),
        (f"{HERMES}Then I go.{END}", [], [CALL], SWALLOWED),
        (f"<think>well</think>Yes{END}", ["Yes"], [], SWALLOWED),
        ("Helloyou there", ["Hello you"], [], SWALLOWED),
    ],
)
def test_a_difference_is_named(sampled: str, texts: list[str], calls: Any, doubt: str) -> None:
    assert find(sampled, *texts, calls=calls) == doubt


def test_what_a_stop_string_cut_off_is_not_missed() -> None:
    assert find("one, two, STOPthr", "one, two, ", stop_reason="STOP") == ""
    assert find("one, two, STOP", "one, two, STOP", stop_reason="STOP") == ""
    assert find("one, Helloyou, STOP", "one, Hello you, ", stop_reason="STOP") == ""
    assert find("one, two, STOP", "two, ", stop_reason="STOP") == SWALLOWED
    assert find("Well, Bye", "Well, ", stop_reason=17) == ""  # the token `Bye`


def test_half_a_call_at_the_limit_may_be_left_out() -> None:
    assert find('<tool_call>{"name": "get_wea', finish_reason="length") == ""


def test_what_the_request_has_left_out_is_not_missed() -> None:
    named = expect_of({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}})
    assert find('{"city": "Oslo"}', calls=[CALL], expectations=named) == ""
    assert find('{"city": "Oslo"}', calls=[CALL]) == TOOL_CALL
    for body in ({"include_reasoning": False}, {"parallel_tool_calls": False}):
        assert find("<think>well</think>Yes", "Yes", expectations=expect_of(body)) == ""
    assert expect_of({"tool_choice": "auto", "parallel_tool_calls": True}) == Expectations()


def test_tokens_that_are_spelled_as_numbers_cannot_be_compared() -> None:
    said = Said(texts=[["Hello"]], calls=[], finish_reason="stop", stop_reason=None)

    assert find_difference(said, ["token_id:1", "token_id:2"], Expectations()) == ""
    assert find_difference(said, [], Expectations()) == ""
