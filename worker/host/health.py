"""Asks services whether they answer, and waits until they do.

A check returns None when all is well, else a few words on what is wrong. Knows protocols, not the platform.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psycopg
import redis

from worker.host.errors import HostError

Check = Callable[[], str | None]

STILL_S = 15.0  # between two words on what is waited for
_ANSWER_S = 5


def check_http(url: str) -> str | None:
    """Ask for a page; any answer below 400 is healthy."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S):  # noqa: S310 - the addresses are our own settings
            return None
    except (urllib.error.URLError, OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def warm_up_engine(base_url: str, *, model: str, timeout_s: float = 120) -> str | None:
    """Ask an engine for one token: its first answer takes seconds, which no agent should wait for."""
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1}).encode()
    request = urllib.request.Request(  # noqa: S310
        f"{base_url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
            return None
    except (urllib.error.URLError, OSError) as error:
        return str(getattr(error, "reason", error))


def check_postgres_socket(folder: Path, *, user: str) -> str | None:
    """Connect to the maintenance database of a server on a Unix socket."""
    return check_postgres(f"host={folder} user={user} dbname=postgres")


def check_postgres(address: str) -> str | None:
    """Connect by a libpq address and run one query."""
    try:
        with psycopg.connect(address, connect_timeout=_ANSWER_S) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return str(error).strip().partition("\n")[0]
    return None


def check_redis(url: str) -> str | None:
    """Send a PING."""
    try:
        with redis.Redis.from_url(url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        return str(error)
    return None


def wait_until_healthy(
    name: str,
    check: Check,
    *,
    timeout_s: float,
    death: Check | None = None,
    say: Callable[[str], None] | None = None,
    every_s: float = 0.1,
) -> float:
    """Wait for a check to pass and return the seconds it took.

    `death` says in words that waiting is useless. Raises HostError then, or after `timeout_s`. `say` is told now and
    then that it is still waited for.
    """
    start = said_at = time.monotonic()
    while (problem := check()) is not None:
        if death is not None and (words := death()) is not None:
            raise HostError(words)
        if time.monotonic() - start > timeout_s:
            raise HostError(f"{name} is not healthy after {timeout_s:.0f} s: {problem}")
        if say is not None and time.monotonic() - said_at > STILL_S:
            said_at = time.monotonic()
            say(f"{name}: not ready yet, after {said_at - start:.0f} s of up to {timeout_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - start
