"""Reads a long request so that its messages can go to an engine in the client's own bytes.

To write them anew takes as long as to read them did, and they are nearly all of it. Knows JSON and one member's name.
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import re2

from apps.gateway.bodies import read_json, refuse_crowd

SHORTEST = 8192  # bytes: a shorter request is written anew as fast
_NAME = "messages"
_START = re2.compile(rb'"messages"\s*:\s*\[')
_HOLE = f"messages {secrets.token_hex(16)}"  # stands where they stood; nobody else can have written it
_HOLE_JSON = orjson.dumps(_HOLE)


class SpelledReader:
    """Reads bodies. `names`: those of the members that may follow the messages; of others nothing is lost but time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._end = re2.compile(rb'\]\s*,\s*"(?:%b)"\s*:' % "|".join(sorted(names)).encode())

    def read(self, raw: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the object, and its messages as they are spelled, b"" where it is short or they are not soon found.

        Raises ApiError (400, 413).
        """
        refuse_crowd(raw)
        body, spelled = self._read_apart(raw) if len(raw) >= SHORTEST else (None, b"")
        return (read_json(raw), b"") if body is None else (body, spelled)

    def _read_apart(self, raw: bytes) -> tuple[dict[str, Any] | None, bytes]:
        """Read the messages, and the rest with a word in their place. Both are whole JSON, so the two are the body."""
        found = _START.search(raw)
        if found is None:
            return None, b""
        start = found.end() - 1
        last = self._end.search(raw, start)
        end = (raw.rfind(b"]") if last is None else last.start()) + 1
        spelled = raw[start:end]
        try:
            body = orjson.loads(b"%b%b%b" % (raw[:start], _HOLE_JSON, raw[end:]))
            if not isinstance(body, dict) or body.get(_NAME) != _HOLE:
                return None, b""
            body[_NAME] = orjson.loads(spelled)
        except orjson.JSONDecodeError:
            return None, b""
        return body, spelled


def write_spelled(body: Mapping[str, Any], spelled: bytes) -> bytes:
    """Return the body as JSON with its messages as they are spelled.

    Raises orjson.JSONEncodeError for what is nested too deeply to be written, as writing all of it would.
    """
    orjson.dumps([message for message in body[_NAME] if not _is_flat(message)])
    rest = orjson.dumps({name: value for name, value in body.items() if name != _NAME})
    return b'%b,"messages":%b}' % (rest[:-1], spelled)


def _is_flat(message: Mapping[str, Any]) -> bool:
    """Whether there is nothing but texts in it."""
    return all(type(value) is str or value is None for value in message.values())
