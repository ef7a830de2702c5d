"""What a conversation's last request said is not read again: agents send all of it each time, and a little more.

Knows lists of messages as bytes of JSON, by a digest of 128 bits. Lists that are handed out are new, the messages in
them are shared: nobody may change those.
"""

import secrets
from dataclasses import dataclass, field
from typing import Any

import xxhash

from apps.trajectories.least_used import LeastUsed

MAX_BYTES = 48 * 1024 * 1024
_MEMORY_A_BYTE = 2  # of letters and the objects around them
_N_LOOKS = 4  # answers back: a client may say several things itself
_MOST_SPACE = 64  # bytes between two messages
_SPACE = b" \t\r\n"
_ANSWER = b'"assistant"'  # no text holds it so: quotes within one are escaped
_SEED = secrets.randbits(64)  # of this process, so that nobody can make two texts of one digest

Name = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Talk:
    """Messages, and of the bytes that they were read from, from the first's begin to the last's end, number and hash.
    Without any it is how each begins.
    """

    messages: list[Any] = field(default_factory=list)
    n_bytes: int = 0
    hashed: Any = field(default_factory=lambda: xxhash.xxh3_128(seed=_SEED))

    def go_on(self, messages: list[Any], text: memoryview) -> "Talk":
        """Return the talk with these messages, and what they were read from, behind it."""
        hashed = self.hashed.copy()
        hashed.update(text)
        return Talk(self.messages + messages, self.n_bytes + len(text), hashed)


class KnownTalks:
    """Those used last, by scope: what one team says is nothing to another."""

    def __init__(self) -> None:
        self._kept = LeastUsed[Name, Talk](max_bytes=MAX_BYTES)

    def find(self, raw: bytes, start: int, *, scope: str) -> tuple[Talk, int]:
        """Return the talk that a list of messages goes on from, and where its next message begins: an answer, mostly.

        `start`: where the list's first message begins. From nothing known each list goes on there.
        """
        at = len(raw)
        for _ in range(_N_LOOKS):
            at = raw.rfind(_ANSWER, start, at)
            if at < 0:
                break
            begin = raw.rfind(b"{", start, at)
            if (end := find_end(raw, begin, start=start)) is not None:
                talk = self._kept.find((scope, xxhash.xxh3_128_digest(memoryview(raw)[start:end], _SEED)))
                if talk is not None:
                    return talk, begin
        return Talk(), start

    def keep(self, talk: Talk, *, scope: str) -> None:
        """Remember it; its messages have been found good."""
        self._kept.keep((scope, talk.hashed.digest()), talk, n_bytes=_MEMORY_A_BYTE * talk.n_bytes)


def find_end(raw: bytes, begin: int, *, start: int) -> int | None:
    """Return where the message ends that stands before the one that begins there; None where none does."""
    comma = strip_space(raw, begin, start=start) - 1
    return strip_space(raw, comma, start=start) if comma > start and raw[comma] == ord(",") else None


def strip_space(raw: bytes, end: int, *, start: int) -> int:
    """Return where the text before `end` ends, but for some space."""
    before = raw[max(start, end - _MOST_SPACE) : end]
    return end - len(before) + len(before.rstrip(_SPACE))
