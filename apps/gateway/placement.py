"""Where a session's calls go: which engine, and which share of a split. Pure: hashes and counts, no clock, no HTTP.

A session stays where its prefix is cached. Rendezvous hashing (Thaler & Ravishankar, 1998) gives each session its own
order of engines, so that one which comes or goes moves only its own sessions; a bound on the load (Mirrokni,
Thorup & Zadimoghaddam, 2018) sends a call to the next in that order while the first has far more than its part.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

import orjson

LOAD_FACTOR = 1.25  # times the mean of calls in flight …
LOAD_SLACK = 4  # … and a few: with little to do nobody is moved
N_SHARES = 100  # shares are per cent
LONG_TEXT = 1024  # of a longer one its ends and its length tell enough
_OPENING_ROLES = (("system", "developer"), ("user",))


class Candidate(Protocol):
    """What is asked of an engine here."""

    @property
    def id(self) -> str: ...
    @property
    def max_in_flight(self) -> int | None: ...


C = TypeVar("C", bound=Candidate)


def choose_engine(engines: Sequence[C], *, loads: Mapping[str, int], session: str) -> C | None:
    """Return the engine for a call of this session, the least busy one when there is no session; None: all are full."""

    def count(engine: C) -> int:
        return loads.get(engine.id, 0)

    free = [engine for engine in engines if engine.max_in_flight is None or count(engine) < engine.max_in_flight]
    if len(free) < 2 or not session:
        return min(free, key=count, default=None)
    bound = LOAD_FACTOR * sum(map(count, engines)) / len(engines) + LOAD_SLACK
    ranked = sorted(free, key=lambda engine: hash_point(session, engine.id), reverse=True)
    return next((engine for engine in ranked if count(engine) <= bound), min(free, key=count))


def choose_share(shares: Sequence[tuple[str, int]], *, session: str) -> str | None:
    """Return the name whose share (per cent) this session falls into, None when it falls into the rest."""
    point = hash_point("share", session) % N_SHARES
    for name, share in shares:
        if point < share:
            return name
        point -= share
    return None


def find_affinity(session_key: str, messages: Sequence[Any]) -> str:
    """Return what the calls of one session share: the client's own key for it, else a hash of how the chat opens.

    "" when there is neither: such calls need no home.
    """
    if session_key:
        return session_key
    opening = [_first_content(messages, roles) for roles in _OPENING_ROLES]
    if opening == [None, None]:
        return ""
    try:
        words = orjson.dumps(opening)
    except orjson.JSONEncodeError:  # nested too deeply: such a call is refused
        return ""
    return blake2b(words, digest_size=16).hexdigest()


def _first_content(messages: Sequence[Any], roles: tuple[str, ...]) -> Any:
    for message in messages:
        if isinstance(message, dict) and message.get("role") in roles:
            content = message.get("content")
            if not isinstance(content, str) or len(content) <= LONG_TEXT:
                return content
            return [len(content), content[: LONG_TEXT // 2], content[-LONG_TEXT // 2 :]]
    return None


def hash_point(*parts: str) -> int:
    """Return 64 bits that all processes compute alike from these words."""
    words = "\0".join(parts).encode(errors="replace")
    return int.from_bytes(blake2b(words, digest_size=8).digest(), "big")
