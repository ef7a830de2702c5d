"""Says whether the tokens that an engine sampled and the answer that it made of them tell the same.

Engines give ids on one side and what their tool and reasoning parsers made of the text on the other. Where the two
disagree, nobody saw what the ids say. Compares texts of tokens, which come with log-probs: nothing is tokenised. Knows
no engine's parser by name, so it asks only what holds for all of them: what is said was sampled, and what was sampled
is said, but for marks, the syntax of calls and what follows a stop string.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

COUNT = "count"  # ids, log-probs and usage are not equally many
TEXT = "text"  # the answer has text that was not sampled
TOOL_CALL = "tool_call"  # the answer has a call that was not sampled
SWALLOWED = "swallowed"  # text was sampled that the answer does not have

_ENDED = frozenset({"stop", "tool_calls"})  # cut by a limit, half a mark or half a call may rightly be left out
_NO_TEXT = "token_id:"  # how vLLM spells tokens under `return_tokens_as_token_ids`
# `<think>`, `<|im_end|>`, `<tool_call>`, `[TOOL_CALLS]`; of `<|channel|>analysis` the word too.
_MARK = re.compile(r"<\|(?:start|channel|constrain)\|>[^<]*|<[^<>]{1,60}>|\[/?[A-Z_]{2,20}\]")
_NOT_PLAIN = re.compile(r"[\W_]+")
_NO_LETTER = re.compile(r"[\W\d_]+")
# Words that calls are written with, letters only.
_SYNTAX = ("arguments", "parameters", "parameter", "functions", "function", "toolcalls", "toolcall", "name", "json")
_CONSTANTS = ("true", "True", "false", "False", "null", "None")


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the request makes of the answer. `is_call_named`: the model samples a call's arguments and no name.
    `is_shortened`: the client has parts of the answer left out.
    """

    is_call_named: bool = False
    is_shortened: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """One choice as the client gets it: its texts in their order, in pieces, and its calls (name, arguments)."""

    texts: list[list[str]]
    calls: list[tuple[str, str]]
    finish_reason: str | None
    stop_reason: int | str | None


def expect_of(body: dict[str, Any]) -> Expectations:
    """Return what a chat request lets its answer be."""
    return Expectations(
        is_call_named=isinstance(body.get("tool_choice"), dict),
        is_shortened=body.get("include_reasoning") is False or body.get("parallel_tool_calls") is False,
    )


def find_difference(said: Said, tokens: list[str], expectations: Expectations) -> str:
    """Return why the tokens are not the answer's, "" when nothing speaks against it."""
    sampled = "".join(tokens)
    if not sampled or tokens[0].startswith(_NO_TEXT):
        return ""
    rest = _cut_out(sampled, ["".join(pieces) for pieces in said.texts])
    if rest is None and not _has_pieces(sampled, said.texts):
        return TEXT
    if said.calls and not _has_calls(sampled, said.calls, expectations):
        return TOOL_CALL
    if expectations.is_shortened or said.finish_reason not in _ENDED:
        return ""
    left = _subtract(sampled, said) if rest is None else _before_stop(rest, said.stop_reason)
    # The last token may be the one that ends an answer, and need not look like a mark.
    is_all_said = any(not _without_calls(_spell(text), said.calls) for text in (left, left.removesuffix(tokens[-1])))
    return "" if is_all_said else SWALLOWED


def _cut_out(sampled: str, texts: list[str]) -> str | None:
    """Return the sampled text without these, which stand in it in this order; None when one does not."""
    kept, at = [], 0
    for text in texts:
        start = sampled.find(text, at)
        if start < 0:
            return None
        kept.append(sampled[at:start])
        at = start + len(text)
    return "".join([*kept, sampled[at:]])


def _has_pieces(sampled: str, texts: list[list[str]]) -> bool:
    """Whether the texts are there, piece by piece, if one looks at letters and digits only.

    Spaces and halves of characters get lost on either way, and a call may stand between two pieces.
    """
    pieces = [_plain(piece) for text in texts for piece in text]
    return _cut_out(_plain(sampled), pieces) is not None


def _has_calls(sampled: str, calls: Sequence[tuple[str, str]], expectations: Expectations) -> bool:
    plain = ""
    for name, arguments in calls:
        if name not in sampled and not expectations.is_call_named:
            return False
        if arguments not in sampled:
            plain = plain or _plain(sampled)
            if _plain(arguments) not in plain and not _has_values(plain, arguments):
                return False
    return True


def _has_values(plain: str, arguments: str) -> bool:
    """Whether a call's keys and values are there one by one: not all models write calls in JSON."""
    try:
        values = list(_walk(orjson.loads(arguments)))
    except (orjson.JSONDecodeError, RecursionError):
        return False
    return all(any(_plain(spelling) in plain for spelling in _spellings(value)) for value in values)


def _walk(value: Any) -> Iterator[str]:
    """Yield what must have been sampled letter by letter. Fractions and constants have several spellings."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)
    elif isinstance(value, str) or type(value) is int:
        yield str(value)


def _spellings(value: str) -> tuple[str, ...]:
    return (value, json.dumps(value, ensure_ascii=False), json.dumps(value))


def _before_stop(rest: str, stop: int | str | None) -> str:
    """Return what is left before the string that ended the answer; behind it is the rest of its last token."""
    if not isinstance(stop, str):
        return rest
    return rest.partition(stop)[0] if stop in rest else ""


def _subtract(sampled: str, said: Said) -> str:
    """Return the sampled letters without those of the texts, where the two are not spelled alike."""
    left = "" if isinstance(said.stop_reason, str) else _spell(sampled)
    for pieces in said.texts:
        for piece in pieces:
            left = left.replace(_spell(piece), "", 1)
    return left


def _without_calls(left: str, calls: Sequence[tuple[str, str]]) -> str:
    """Return the letters that are not those of a call either."""
    if not left or not calls:
        return left
    parts = {*_SYNTAX, *_CONSTANTS}
    for name, arguments in calls:
        spelled = _spell(arguments)
        parts |= {_spell(name), spelled} if spelled in left else {_spell(name), *_spell_values(arguments)}
    for part in sorted(parts, key=len, reverse=True):
        left = left.replace(part, "")
    return left


def _spell_values(arguments: str) -> Iterator[str]:
    with contextlib.suppress(orjson.JSONDecodeError, RecursionError):
        for value in _walk(orjson.loads(arguments)):
            yield from map(_spell, _spellings(value))


def _plain(text: str) -> str:
    return _NOT_PLAIN.sub("", text)


def _spell(text: str) -> str:
    return _NO_LETTER.sub("", _MARK.sub("", text))
