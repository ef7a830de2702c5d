"""What no column can hold."""

import math
from typing import Any

import pytest

from apps.core.texts import MAX_DEPTH, NOT_FINITE, NUL_OR_HALF, TOO_DEEP, find_fault


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [None, 1, "🦀", "", {"a": ["b", {"c": 1.5}]}, nested(MAX_DEPTH)])
def test_what_can_be_stored_has_no_fault(value: Any) -> None:
    assert find_fault(value) == ""


@pytest.mark.parametrize("text", ["\x00", "a\ud800", "\udbff", "\udc00b"])
def test_texts_are_looked_at_wherever_they_are(text: str) -> None:
    assert find_fault(text) == find_fault([1, {"a": [text]}]) == find_fault({"a": {text: 1}}) == NUL_OR_HALF


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_of_json_is_found(number: float) -> None:
    assert find_fault(number) == find_fault({"a": [1.5, number]}) == NOT_FINITE


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_depth_has_an_end(depth: int) -> None:
    assert find_fault(nested(depth)) == TOO_DEEP
