"""Reads a long request so that its messages can go to an engine in the client's own bytes.

To write them anew takes as long as to read them did, and they are nearly all of it. What the conversation's last
request said is not read either (`known_talks.py`). Knows JSON and one member's name.
"""

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
import re2

from apps.gateway.bodies import read_json, refuse_crowd
from apps.gateway.known_talks import KnownTalks, Talk, find_end, strip_space

SHORTEST = 8192  # bytes: a shorter request is written anew as fast
_NAME = "messages"
_START = re2.compile(rb'"messages"\s*:\s*\[')
_MESSAGE = b'{"role"'  # how most clients begin one
_HOLE = f"messages {secrets.token_hex(16)}"  # stands where they stood; nobody else can have written it
_HOLE_JSON = orjson.dumps(_HOLE)


@dataclass(frozen=True, slots=True)
class Reading:
    """A request's body. `spelled`: its messages as the client wrote them, empty where it is short or they are not soon
    found. So many of them, `n_known`, are as they were read before; `talks` is what may be known from now on.
    """

    body: dict[str, Any]
    spelled: bytes | memoryview = b""
    n_known: int = 0
    talks: tuple[Talk, ...] = ()


class SpelledReader:
    """Reads bodies. `names`: those of the members that may follow the messages; of others nothing is lost but time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._end = re2.compile(rb'\]\s*,\s*"(?:%b)"\s*:' % "|".join(sorted(names)).encode())

    def read(self, raw: bytes, known: KnownTalks, *, scope: str) -> Reading:
        """Return what the request says. `scope`: whose talks may be known. Raises ApiError (400, 413)."""
        refuse_crowd(raw)
        reading = self._read_apart(raw, known, scope=scope) if len(raw) >= SHORTEST else None
        return reading or Reading(read_json(raw))

    def _read_apart(self, raw: bytes, known: KnownTalks, *, scope: str) -> Reading | None:
        """Read the messages, and the rest with a word in their place. Both are whole JSON, so the two are the body."""
        found = _START.search(raw)
        if found is None:
            return None
        start = found.end()
        talk, begin = known.find(raw, start, scope=scope)
        last = self._end.search(raw, begin)
        end = raw.rfind(b"]") if last is None else last.start()
        try:
            body = orjson.loads(b"%b%b%b" % (raw[: start - 1], _HOLE_JSON, raw[end + 1 :]))
            if not isinstance(body, dict) or body.get(_NAME) != _HOLE:
                return None
            talks = _read_on(talk, raw, start=start, begin=begin, end=end)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            return None
        body[_NAME] = list(talks[0].messages)
        return Reading(body, memoryview(raw)[start - 1 : end + 1], len(talk.messages), talks)


def _read_on(talk: Talk, raw: bytes, *, start: int, begin: int, end: int) -> tuple[Talk, ...]:
    """Return the talk with the messages in `raw[begin:end]` behind it, and, where it is easily had, all but the last:
    some agents end with a word that their next request lacks. Raises what `_read_list` does.
    """
    view, known_end = memoryview(raw), start + talk.n_bytes
    whole_end = strip_space(raw, end, start=begin)
    last = raw.rfind(_MESSAGE, begin + 1, end)
    middle = find_end(raw, last, start=begin)
    if middle is not None:
        with suppress(orjson.JSONDecodeError):  # it was no message, but something within one
            said = talk.go_on(_read_list(raw, begin, middle), view[known_end:middle])
            return said.go_on(_read_list(raw, last, end), view[middle:whole_end]), said
    return (talk.go_on(_read_list(raw, begin, end), view[known_end:whole_end]),)


def _read_list(raw: bytes, begin: int, end: int) -> list[Any]:
    """Return the messages there; raises orjson.JSONDecodeError, and orjson.JSONEncodeError for what is nested too
    deeply to be written.
    """
    messages: list[Any] = orjson.loads(b"[%b]" % raw[begin:end])
    orjson.dumps([message for message in messages if not _is_flat(message)])
    return messages


def write_spelled(body: Mapping[str, Any], spelled: bytes | memoryview) -> bytes:
    """Return the body as JSON with its messages as they are spelled."""
    rest = orjson.dumps({name: value for name, value in body.items() if name != _NAME})
    return b"".join((rest[:-1], b',"messages":', spelled, b"}"))


def _is_flat(message: Any) -> bool:
    """Whether there is nothing but texts in it."""
    return isinstance(message, dict) and all(type(value) is str or value is None for value in message.values())
