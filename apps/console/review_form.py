"""The form of a review: one box for each field, its answers as buttons with keys, and what a filled-in form says.

Knows the score schema's kinds; checks nothing: the queue's services do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from apps.core.errors import InvalidInput
from apps.feedback.models import Label
from apps.feedback.queues.models import QueueItem
from apps.feedback.queues.saying import TIE
from apps.feedback.queues.services import BETTER
from apps.feedback.score_schema import FieldKind, FieldSpec

MOST_BUTTONS = 9  # that have a digit for a key


@dataclass(frozen=True, kw_only=True)
class Option:
    """One button. `key` chooses it while its box is the current one; `worth` is its reward, -1 to 1, if it has one."""

    value: str
    words: str
    key: str = ""
    worth: float | None = None
    is_chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Box:
    """One question. `options` are empty for words, and for numbers that are typed."""

    name: str
    words: str
    help: str
    kind: str
    options: tuple[Option, ...] = ()
    low: float | None = None
    high: float | None = None
    typed: str = ""  # an answer that no button has
    text: str = ""

    @property
    def said(self) -> str:
        """What is chosen or typed, in words."""
        chosen = next((option.words for option in self.options if option.is_chosen), "")
        return chosen or ("−" + self.typed[1:] if self.typed.startswith("-") else self.typed)

    @property
    def line(self) -> str:
        """The question and what is said to it, where that is more than words."""
        colon = "" if self.words.endswith(("?", ":", ".", "!")) else ":"
        return f"{self.words}{colon} {self.said}" if self.said else self.words

    @property
    def is_words(self) -> bool:
        return self.kind == FieldKind.TEXT

    @property
    def is_number(self) -> bool:
        return self.kind == FieldKind.NUMBER or (self.kind == FieldKind.SCALE and not self.options)


def read_boxes(specs: Sequence[FieldSpec], answers: Mapping[str, Any]) -> list[Box]:
    """Return the boxes of a queue's fields, filled with answers where there are some."""
    return [_read_box(spec, answers.get(spec.name) or {}) for spec in specs]


def _read_box(spec: FieldSpec, said: Mapping[str, Any]) -> Box:
    value = said.get("value")
    options = tuple(
        Option(
            value=json.dumps(one),
            words=words,
            key=str(place) if place <= MOST_BUTTONS else "",
            worth=spec.reward_of(one),
            is_chosen=one == value,
        )
        for place, (one, words) in enumerate(_list_options(spec), start=1)
    )
    is_typed = value is not None and not any(option.is_chosen for option in options)
    return Box(
        name=spec.name,
        words=spec.words,
        help=spec.help,
        kind=spec.kind,
        options=options,
        low=spec.low,
        high=spec.high,
        typed=_type(value) if is_typed else "",
        text=said.get("text") or "",
    )


def _list_options(spec: FieldSpec) -> list[tuple[Any, str]]:
    match spec.kind:
        case FieldKind.BINARY:
            return [(False, "No"), (True, "Yes")]
        case FieldKind.CHOICE:
            return [(choice.name, choice.title or choice.name.replace("_", " ")) for choice in spec.choices]
        case FieldKind.SCALE | FieldKind.NUMBER:
            return [(value, _figure(value, is_signed=(spec.low or 0) < 0)) for value in _list_numbers(spec)]
        case _:
            return []


def _list_numbers(spec: FieldSpec) -> list[float]:
    """A scale's steps, if they have keys; of a range its ends and what lies between in quarters."""
    low, high = float(spec.low or 0), float(spec.high or 0)
    if spec.kind == FieldKind.NUMBER:
        return [low + part * (high - low) / 4 for part in range(5)]
    return [float(step) for step in range(int(low), int(high) + 1)] if high - low < MOST_BUTTONS else []


def _figure(value: float, *, is_signed: bool) -> str:
    sign = "−" if value < 0 else "+" if value > 0 and is_signed else ""
    return f"{sign}{abs(value):g}"


def read_sides(item: QueueItem, *, is_swapped: bool, answers: Mapping[str, Any]) -> Box:
    """Return the question of a pair. Which stands left is chance, so that the place says nothing."""
    assert item.other is not None  # noqa: S101 (of a pair)
    left, right = (item.other, item.trajectory) if is_swapped else (item.trajectory, item.other)
    said = answers.get(BETTER) or {}
    choices = ((left.pk, "A is better", "1"), (TIE, "As good", "2"), (right.pk, "B is better", "3"))
    options = tuple(
        Option(value=json.dumps(value), words=words, key=key, is_chosen=said.get("value") == value)
        for value, words, key in choices
    )
    text = said.get("text") or ""
    return Box(name=BETTER, words="Which is better?", help="", kind="pair", options=options, text=text)


def tell_answers(item: QueueItem, answers: Mapping[str, Any], specs: Sequence[FieldSpec]) -> list[Box]:
    """Return what was answered, in the words of the schema of now; a field that it has no more speaks for itself."""
    if item.other is not None:
        return [read_sides(item, is_swapped=False, answers=answers)]
    known = {spec.name: spec for spec in specs}
    return [_tell(name, said, known) for name, said in answers.items()]


def tell_label(label: Label, known: Mapping[str, FieldSpec]) -> Box:
    """Return what a label says, likewise."""
    said = {"value": label.value if label.said is None else label.said, "text": label.text}
    return _tell(label.field, said, known)


def tell_value(name: str, value: Any, known: Mapping[str, FieldSpec]) -> str:
    """Return one answer to a field in words, likewise; "" where there is none."""
    return _tell(name, {"value": value}, known).said


def _tell(name: str, said: Mapping[str, Any], known: Mapping[str, FieldSpec]) -> Box:
    if name in known:
        return _read_box(known[name], said)
    value = said.get("value")
    typed = "" if value is None else _type(value)
    return Box(name=name, words=name.replace("_", " "), help="", kind="", typed=typed, text=said.get("text") or "")


def _type(value: Any) -> str:
    """Write an answer as one would type it; a place in a ranking as words."""
    match value:
        case bool():
            return "Yes" if value else "No"
        case {"place": place, "of": of}:
            return f"{place} of {of}"
        case int() | float():
            return f"{value:.15g}"
        case _:
            return str(value)


def read_answers(form: QueryDict) -> dict[str, dict[str, Any]]:
    """Return what the form says: `v-…` are values of buttons (JSON), `n-…` typed numbers, `t-…` texts."""
    answers: dict[str, dict[str, Any]] = {}
    for key in form:
        mark, _, name = key.partition("-")
        given = form.get(key, "").strip()
        if mark not in {"v", "n", "t"} or not name or not given:
            continue
        answer = answers.setdefault(name, {"value": None, "text": ""})
        if mark == "t":
            answer["text"] = form.get(key, "").replace("\r\n", "\n")
        else:
            answer["value"] = _read_value(given, name)
    return answers


def _read_value(given: str, name: str) -> Any:
    try:
        return json.loads(given.replace("−", "-").replace(",", "."))
    except (ValueError, RecursionError):
        raise InvalidInput(f"{name}: {given[:40]!r} is no answer to this", field=name) from None
