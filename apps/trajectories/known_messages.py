"""Messages and requests that were met before. Of a conversation's next request nearly all is what the last one had: it
is found again by comparing bytes, and what was found out about its messages need not be found out anew.

In memory only, and it changes nothing: whoever reads without it reads the same.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from apps.trajectories.least_used import LeastUsed
from apps.trajectories.messages import KnownMessage, Message, dump_json, hash_bytes, shorten_hash

MAX_BYTES = 32 * 1024 * 1024  # of each; the web process reads calls too, when its API is asked for one that waits
_scan = json.JSONDecoder().raw_decode
_skip_space = re.compile(r"[ \t\n\r]*").match
_MESSAGES = "messages"
_N_BEFORE = 200  # bytes of what stands before the user's words: some clients put the role behind them
_first_user = re.compile(rb'"role"\s*:\s*"user"[^}]{0,300}').search
_HASH_BYTES = 500  # what a hash takes that may go on
_NOT_AS_EXPECTED = (IndexError, ValueError, RecursionError)

_messages = LeastUsed[str, KnownMessage](max_bytes=MAX_BYTES)
_requests = LeastUsed[str, "_Known"](max_bytes=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Request:
    """What `json.loads` says of a request, each of its messages known; and `messages.hash_bytes` of its bytes."""

    body: Any
    digest: str


@dataclass(frozen=True, slots=True)
class _Known:
    """A request's fields, those of them before its messages, and its bytes.

    `ends`: where each message ends; `hashes`: SHA-256 of the bytes up to there; `rest`: what is behind the last.
    """

    body: dict[str, Any]
    head: dict[str, Any]
    data: bytes
    ends: list[int]
    hashes: list["hashlib._Hash"]

    @property
    def rest(self) -> bytes:
        return self.data[self.ends[-1] if self.ends else 0 :]


def know(message: Message) -> Message:
    """Return the message, the very one that was met before if there was an equal one."""
    if not isinstance(message, dict):
        return message
    spelled = dump_json(message)
    known = _messages.find(spelled)
    if known is None:
        known = KnownMessage(message, spelled)
        _messages.keep(spelled, known, n_bytes=4 * len(spelled))  # parsed JSON takes about twice its text
    return known


def guess_conversation(data: bytes) -> str:
    """Return a name for the conversation of a request, by its user's first words: good enough for `read_request`."""
    found = _first_user(data)
    if found is None:
        return ""
    return data[max(0, found.start() - _N_BEFORE) : found.end()].decode("utf-8", "replace")


def read_request(data: bytes, *, conversation: str) -> Request:
    """Return the request, read. Raises what `json.loads` raises.

    `conversation`: a name under which the request before this one was read, if there was one; a wrong one costs time.
    """
    try:
        known = _go_on(data, _requests.find(conversation)) or _read_anew(data)
    except _NOT_AS_EXPECTED:
        body = json.loads(data)
        if isinstance(body, dict) and isinstance(body.get(_MESSAGES), list):
            body[_MESSAGES] = list(map(know, body[_MESSAGES]))
        return Request(body, hash_bytes(data))
    _requests.keep(conversation, known, n_bytes=2 * len(data) + _HASH_BYTES * len(known.ends))
    return Request({**known.body, _MESSAGES: list(known.body[_MESSAGES])}, _digest(known))


def _go_on(data: bytes, last: _Known | None) -> _Known | None:
    """Return the request if it begins as the last one did, with one message at least. Only what is new is decoded."""
    n_same = _count_same(data, last) if last is not None else 0
    if last is None or not n_same:
        return None
    messages, ends, hashes = last.body[_MESSAGES][:n_same], last.ends[:n_same], last.hashes[:n_same]
    text, new_ends = data[ends[-1] :].decode(), list[int]()
    rest_at = _read_messages(text, 0, messages, new_ends)
    ends += _count_bytes(text, new_ends, start=ends[-1])
    if len(data) == ends[-1] + len(last.rest) and data.endswith(last.rest):
        return _know(data, {**last.body, _MESSAGES: messages}, head=last.head, ends=ends, hashes=hashes)
    body = _read_rest(text, rest_at, head=last.head, messages=messages)
    return _know(data, body, head=last.head, ends=ends, hashes=hashes)


def _count_bytes(text: str, ends: Sequence[int], *, start: int = 0) -> list[int]:
    """Return where in the bytes those places of the text are which begins at `start` there."""
    if text.isascii():
        return [start + end for end in ends]
    lengths = [len(text[one:end].encode()) for one, end in pairwise([0, *ends])]
    return list(accumulate(lengths, initial=start))[1:]


def _know(
    data: bytes, body: dict[str, Any], *, head: dict[str, Any], ends: list[int], hashes: Sequence["hashlib._Hash"] = ()
) -> _Known:
    """Return the request, hashed from where `hashes` ends."""
    found, view = list(hashes), memoryview(data)
    for place in range(len(found), len(ends)):
        start, hashed = (ends[place - 1], found[-1].copy()) if place else (0, hashlib.sha256())
        hashed.update(view[start : ends[place]])
        found.append(hashed)
    return _Known(body, head, data, ends, found)


def _digest(known: _Known) -> str:
    hashed = known.hashes[-1].copy() if known.hashes else hashlib.sha256()
    hashed.update(known.rest)
    return shorten_hash(hashed)


def _count_same(data: bytes, last: _Known) -> int:
    """Return how many messages both have from the start, as far as the bytes are the same, too."""
    view, low, high = memoryview(last.data), 0, len(last.ends)
    if high and data.startswith(view[: last.ends[-1]]):
        low = high
    while low < high:  # Slices compare in C, uncopied: halving beats walking.
        middle = (low + high + 1) // 2
        start = last.ends[low - 1] if low else 0
        if data.startswith(view[start : last.ends[middle - 1]], start):
            low = middle
        else:
            high = middle - 1
    # What ends in `}` ends there; another value may only begin like this one.
    return low if low and data[last.ends[low - 1] - 1 : last.ends[low - 1]] == b"}" else 0


def _read_anew(data: bytes) -> _Known:
    """Walk through the fields; raises one of _NOT_AS_EXPECTED for a text that needs `json.loads` to be understood."""
    head: dict[str, Any] = {}
    messages: list[Message] = []
    ends: list[int] = []
    text = data.decode()
    at = _expect(text, 0, "{")
    while True:
        name, at = _read_name(text, at)
        if name == _MESSAGES and text[at] == "[":
            rest_at = _read_messages(text, at + 1, messages, ends)
            body = _read_rest(text, rest_at, head=head, messages=messages)
            return _know(data, body, head=head, ends=_count_bytes(text, ends))
        head[name], at = _scan(text, at)
        at = _expect(text, at, ",")


def _read_rest(text: str, rest_at: int, *, head: dict[str, Any], messages: list[Message]) -> dict[str, Any]:
    """Return all fields: those before the messages, these, and what is behind them."""
    body, at = {**head, _MESSAGES: messages}, _skip(text, rest_at)
    while text[at] != "}":
        name, at = _read_name(text, _expect(text, at, ","))
        if name == _MESSAGES:
            raise ValueError("messages twice")
        body[name], at = _scan(text, at)
        at = _skip(text, at)
    if _skip(text, at + 1) != len(text):
        raise ValueError("something behind the object")
    return body


def _read_name(text: str, at: int) -> tuple[str, int]:
    """Return a field's name and where its value begins."""
    at = _skip(text, at)
    if text[at] != '"':
        raise ValueError(f"no name at {at}")
    name, at = _scan(text, at)
    return name, _skip(text, _expect(text, at, ":"))


def _read_messages(text: str, at: int, messages: list[Message], ends: list[int]) -> int:
    """Read the list's elements from `at` on, behind those that are known; return where the list is over."""
    while True:
        at = _skip(text, at)
        if text[at] == "]":
            return at + 1
        if messages:
            at = _skip(text, _expect(text, at, ","))
        message, at = _scan(text, at)
        messages.append(know(message))
        ends.append(at)


def _skip(text: str, at: int) -> int:
    found = _skip_space(text, at)
    return found.end() if found else at


def _expect(text: str, at: int, char: str) -> int:
    at = _skip(text, at)
    if text[at] != char:
        raise ValueError(f"no {char} at {at}")
    return at + 1
