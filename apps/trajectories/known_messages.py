"""Messages and requests that were met before. Of a conversation's next request nearly all is what the last one had: it
is found again by comparing bytes, and what was found out about its messages need not be found out anew.

In memory only, and it changes nothing: whoever reads without it reads the same.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from apps.trajectories.least_used import LeastUsed
from apps.trajectories.messages import KnownMessage, Message, dump_json

MAX_BYTES = 32 * 1024 * 1024  # of each; the web process reads calls too, when its API is asked for one that waits
_scan = json.JSONDecoder().raw_decode
_skip_space = re.compile(r"[ \t\n\r]*").match
_MESSAGES = "messages"
_NOT_AS_EXPECTED = (IndexError, ValueError, RecursionError)

_messages = LeastUsed[str, KnownMessage](max_bytes=MAX_BYTES)
_requests = LeastUsed[str, "_Request"](max_bytes=MAX_BYTES)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request's text, its fields, those of them before its messages, and where each message ends; `rest` is the text
    behind them all.
    """

    text: str
    body: dict[str, Any]
    head: dict[str, Any]
    ends: list[int]
    rest: str


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


def read_request(data: bytes, *, conversation: str) -> Any:
    """Return what `json.loads` does, each of its messages known. Raises what it raises.

    `conversation`: a name under which the request before this one was read, if there was one; a wrong one costs time.
    """
    try:
        text = data.decode()
        request = _go_on(text, _requests.find(conversation)) or _read_anew(text)
    except _NOT_AS_EXPECTED:
        body = json.loads(data)
        if isinstance(body, dict) and isinstance(body.get(_MESSAGES), list):
            body[_MESSAGES] = list(map(know, body[_MESSAGES]))
        return body
    _requests.keep(conversation, request, n_bytes=2 * len(text))
    return {**request.body, _MESSAGES: list(request.body[_MESSAGES])}


def _go_on(text: str, last: _Request | None) -> _Request | None:
    """Return the request if it begins as the last one did, with one message at least."""
    n_same = _count_same(text, last) if last is not None else 0
    if last is None or not n_same:
        return None
    messages, ends = last.body[_MESSAGES][:n_same], last.ends[:n_same]
    rest_at = _read_messages(text, ends[-1], messages, ends)
    if text.endswith(last.rest) and len(text) == rest_at + len(last.rest):
        return _Request(text, {**last.body, _MESSAGES: messages}, last.head, ends, last.rest)
    return _read_rest(text, rest_at, head=last.head, messages=messages, ends=ends)


def _count_same(text: str, last: _Request) -> int:
    """Return how many messages both have from the start, as far as the texts are the same, too."""
    low, high = 0, len(last.ends)
    while low < high:  # Slices compare in C: halving beats walking.
        middle = (low + high + 1) // 2
        start, end = last.ends[low - 1] if low else 0, last.ends[middle - 1]
        if text[start:end] == last.text[start:end]:
            low = middle
        else:
            high = middle - 1
    # What ends in `}` ends there; another value may only begin like this one.
    return low if low and text[last.ends[low - 1] - 1] == "}" else 0


def _read_anew(text: str) -> _Request:
    """Walk through the fields; raises one of _NOT_AS_EXPECTED for a text that needs `json.loads` to be understood."""
    head: dict[str, Any] = {}
    messages: list[Message] = []
    ends: list[int] = []
    at = _expect(text, 0, "{")
    while True:
        name, at = _read_name(text, at)
        if name == _MESSAGES and text[at] == "[":
            rest_at = _read_messages(text, at + 1, messages, ends)
            return _read_rest(text, rest_at, head=head, messages=messages, ends=ends)
        head[name], at = _scan(text, at)
        at = _expect(text, at, ",")


def _read_rest(text: str, rest_at: int, *, head: dict[str, Any], messages: list[Message], ends: list[int]) -> _Request:
    """Read the fields behind the messages."""
    body, at = {**head, _MESSAGES: messages}, _skip(text, rest_at)
    while text[at] != "}":
        name, at = _read_name(text, _expect(text, at, ","))
        if name == _MESSAGES:
            raise ValueError("messages twice")
        body[name], at = _scan(text, at)
        at = _skip(text, at)
    if _skip(text, at + 1) != len(text):
        raise ValueError("something behind the object")
    return _Request(text, body, head, ends, text[rest_at:])


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
