"""Contracts as JSON: what comes back is what went in, and two sides that disagree hear of it."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from apps.core.contracts.codec import ContractError, decode, encode


@dataclass(frozen=True, kw_only=True)
class Part:
    ids: tuple[int, ...]
    weight: float


@dataclass(frozen=True, kw_only=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    note: str | None = None
    best: Part | None = None
    sums: dict[str, float] = field(default_factory=dict)
    anything: Any = None
    is_done: bool = False


PART = Part(ids=(1, 2), weight=0.1)
WHOLE = Whole(name="é\n", parts=(PART,), note="n", best=PART, sums={"a": 1.5}, anything=[1, {"b": None}], is_done=True)


def test_what_comes_back_is_what_went_in() -> None:
    assert decode(Whole, encode(WHOLE)) == WHOLE
    assert "\n" not in encode(WHOLE)


def test_defaults_may_be_left_out() -> None:
    assert decode(Whole, '{"name": "x", "parts": []}') == Whole(name="x", parts=())


def test_a_whole_number_is_a_float_too() -> None:
    weight = decode(Part, '{"ids": [], "weight": 1}').weight
    assert (weight, type(weight)) == (1.0, float)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "Whole: expected"),
        ('{"name": "x"}', "missing fields"),
        ('{"name": "x", "parts": [], "extra": 1}', "unknown fields"),
        ('{"name": 3, "parts": []}', "Whole.name"),
        ('{"name": "x", "parts": {}}', "Whole.parts"),
        ('{"name": "x", "parts": [{"ids": [1.5], "weight": 1}]}', r"Whole.parts\[0\].ids\[0\]"),
        ('{"name": "x", "parts": [{"ids": [true], "weight": 1}]}', r"Whole.parts\[0\].ids\[0\]"),
        ('{"name": "x", "parts": [{"ids": [], "weight": true}]}', "weight"),
        ('{"name": "x", "parts": [], "is_done": 1}', "is_done"),
        ('{"name": "x", "parts": [], "sums": []}', "sums"),
    ],
)
def test_another_shape_is_refused_by_name(text: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        decode(Whole, text)


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(Part(ids=(), weight=float("nan")))
