"""News for open pages: "there is something newer about X". Carries no data; a page that hears it asks the server.

A project's news has numbers without gaps, and Valkey keeps the latest: a page that was away is sent what it missed from
the number that it has. What is not kept any more it is told as a gap, and asks for everything anew. Numbers begin at
the time in microseconds, so that they go on rising should Valkey lose them.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import redis
import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

log = structlog.get_logger(__name__)
_gathered: ContextVar[list[tuple[str, Mapping[str, str]]] | None] = ContextVar("gathered news", default=None)

KEPT = 1000  # of a project, about
KEPT_S = 7 * 24 * 3600
MOST_AT_ONCE = 200
GAP = "gap"
_TIMEOUT_S = 2
# One statement, so that numbers are given and kept in one order, whoever publishes.
_APPEND = """
    local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
    local number = last and tonumber(string.match(last[1], '^%d+')) or tonumber(ARGV[1])
    for place = 5, #ARGV do
        number = number + 1
        redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], string.format('%.0f-0', number), ARGV[4], ARGV[place])
    end
    redis.call('EXPIRE', KEYS[1], ARGV[3])
    return string.format('%.0f', number)
"""


@dataclass(frozen=True, kw_only=True)
class News:
    """There is something newer about an object: a trajectory, a run, a queue. A `GAP` has no id."""

    number: int
    kind: str
    id: str


def project_group(project_id: str) -> str:
    """Name of the group that hears of everything in a project."""
    return f"project.{project_id}"


def publish_news(project_id: str, *, kind: str, object_id: str) -> None:
    """After commit, tell open pages of the project that an object ("trajectory", "run", "version") is newer."""
    publish_many({object_id: project_id}, kind=kind)


def publish_many(objects: Mapping[str, str], *, kind: str) -> None:
    """After commit, tell of several objects (id → project), all of a project's at once."""
    gathered = _gathered.get()
    if not objects:
        return
    if gathered is not None:
        gathered.append((kind, objects))
    else:
        transaction.on_commit(lambda: _send([(kind, objects)]))


@contextmanager
def news_at_once() -> Iterator[None]:
    """Tell, after commit, of all that is published inside in one go: each go takes the event loop's turn."""
    gathered: list[tuple[str, Mapping[str, str]]] = []
    token = _gathered.set(gathered)
    try:
        yield
    finally:
        _gathered.reset(token)
    if gathered:
        transaction.on_commit(lambda: _send(gathered))


def find_newest(project_id: str) -> int | None:
    """Return the number of a project's newest news, None where there is none."""
    with _valkey() as client:
        newest: Any = client.xrevrange(_stream(project_id), count=1)
        return _number_of(newest[0][0]) if newest else None
    return None


def list_news(project_id: str, *, since: int) -> list[News]:
    """Return the news after number `since` (0: there was none yet), the oldest first and at most `MOST_AT_ONCE`; or a
    gap, where some of it is lost, with the number to go on from."""
    with _valkey() as client:
        found: Any = client.xrange(_stream(project_id), min=f"{since + 1}-0", count=MOST_AT_ONCE)
        news = [News(number=_number_of(entry), kind=kind, id=pk) for entry, said in found for kind, pk in said.items()]
        newest = find_newest(project_id) or 0
        is_whole = news[0].number == since + 1 if news else newest == since
        return news if is_whole or not newest or not since else [News(number=newest, kind=GAP, id="")]
    return []


def _send(gathered: Sequence[tuple[str, Mapping[str, str]]]) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    with _valkey() as client:
        messages = [
            (project_id, {"type": "news", "kind": kind, "ids": ids, "number": _append(client, project_id, kind, ids)})
            for kind, objects in gathered
            for project_id, ids in _by_project(objects)
        ]

        async def send_all() -> None:
            for project_id, message in messages:
                await layer.group_send(project_group(project_id), message)

        async_to_sync(send_all)()


def _by_project(objects: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    grouped = groupby(sorted(objects, key=objects.__getitem__), key=objects.__getitem__)
    return [(project_id, list(ids)) for project_id, ids in grouped]


def _append(client: redis.Redis, project_id: str, kind: str, ids: Sequence[str]) -> int:
    now_us = time.time_ns() // 1000
    newest: Any = client.eval(_APPEND, 1, _stream(project_id), now_us, KEPT, KEPT_S, kind, *ids)
    return int(newest)


@contextmanager
def _valkey() -> Iterator[redis.Redis]:
    """While Valkey is away nothing is said: pages catch up later, and writers must not fail for it."""
    try:
        yield _connect(settings.REDIS_URL)
    except (OSError, redis.RedisError) as error:
        log.warning("live.away", error=str(error))


@lru_cache
def _connect(url: str) -> redis.Redis:
    """Connections that are kept: one that Valkey has closed meanwhile is opened again, once and at once."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1),
    )


def _stream(project_id: str) -> str:
    return f"claw:news:{project_id}"


def _number_of(entry_id: str) -> int:
    return int(entry_id.split("-", maxsplit=1)[0])
