"""Services that are away for a while: agents are served all the same, and what they were told is in the pool later."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import websockets
from django.conf import settings
from django.test import Client as Browser
from websockets.sync.client import connect

from tests.chaos.conftest import Note
from tests.chaos.dialects import Chat, Turn
from tests.chaos.drill import Drill
from tests.chaos.world import World, wait_until
from tests.factories.accounts import MembershipFactory

OUTAGE_S = 3.0
LONG_OUTAGE_S = 60.0
LONG_FROM_ROUNDS = 10
NEWS_S = 10
TOLD_WITHIN_S = 60  # on a busy machine


def test_postgres_away(world: World, seed: int, rounds: int, note: Note) -> None:
    """For a minute in the long form. Not one call fails: who goes on from an answer that Postgres has waits for it."""
    outage_s = LONG_OUTAGE_S if rounds >= LONG_FROM_ROUNDS else OUTAGE_S
    n_lost = world.count_lost()
    with Drill(world, seed=seed) as drill:
        drill.pick_moment()
        world.postgres.kill()
        end_at = time.monotonic() + outage_s
        drill.wait_for_answers(20)
        wait_until(lambda: not any(world.ask("database")), what="readyz tells", timeout_s=TOLD_WITHIN_S)
        n_bytes = size_of(world.waiting_files())
        drill.wait_for_answers(50)
        assert size_of(world.waiting_files()) > n_bytes > 0
        time.sleep(max(0.0, end_at - time.monotonic()))
        world.postgres.restart()
        drill.wait_for_answers(50)
        tally = drill.finish()
    note(tally)
    assert not drill.failures, drill.failures[:3]
    assert world.count_lost() == n_lost


def size_of(files: list[Path]) -> int:
    n_bytes = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # replayed meanwhile
            n_bytes += file.stat().st_size
    return n_bytes


def test_gateways_killed_while_postgres_is_away(world: World, seed: int, rounds: int, note: Note) -> None:
    """In the midst of writing to the spool, or of its replay; now and then all of them at once. A living gateway, or
    the next one, replays what a dead one left."""
    with Drill(world, seed=seed) as drill:
        for n in range(rounds):
            world.postgres.kill()
            drill.wait_for_answers(30)
            victims = world.gateways if n % 3 == 2 else [drill.chance.choice(world.gateways)]
            is_back_before = n % 3 == 1
            if is_back_before:
                world.postgres.restart()
            drill.pick_moment()
            for victim in victims:
                victim.kill()
            if not is_back_before:
                time.sleep(drill.chance.uniform(0, 1))
            world.mend()
            drill.wait_for_answers(30)
        tally = drill.finish()
    note(tally)


@pytest.fixture
def cookie(world: World) -> str:
    """What the browser of a member of the project's team sends."""
    browser = Browser()
    browser.force_login(MembershipFactory.create(team=world.project.team).user)
    return f"{settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME].value}"


def hear_news(world: World, cookie: str) -> Iterator[str]:
    """Open a page's socket and yield what it hears."""
    url = f"{world.urls[0].replace('http', 'ws')}/ws/p/{world.project.slug}/news"
    with connect(url, additional_headers={"Cookie": cookie, "Origin": world.urls[0]}) as socket:
        while True:
            yield str(socket.recv(timeout=NEWS_S))


def is_told_of_trajectories(world: World, cookie: str) -> bool:
    """Say whether a page that connects now, or again, hears of what happens."""
    with contextlib.suppress(websockets.WebSocketException, TimeoutError, OSError):
        return any('"trajectory"' in message for message, _ in zip(hear_news(world, cookie), range(3), strict=False))
    return False


def test_valkey_killed(world: World, seed: int, rounds: int, note: Note, cookie: str) -> None:
    """No call fails, limits let everybody in, readyz tells; then limits and live events are back."""
    with Drill(world, seed=seed) as drill:
        for _ in range(rounds):
            wait_until(lambda: is_told_of_trajectories(world, cookie), what="live events come", timeout_s=TOLD_WITHIN_S)
            # A limiter that waits too long for a busy Valkey lets everybody in, and asks again a second later.
            names = (f"{drill.secret}-{drill.n_faults}-up-{n}" for n in itertools.count())
            wait_until(partial(is_next_limited, world, names), what="limits hold", timeout_s=TOLD_WITHIN_S)
            drill.pick_moment()
            world.valkey.kill()
            wait_until(lambda: not any(world.ask("redis")), what="readyz tells", timeout_s=TOLD_WITHIN_S)
            drill.wait_for_answers(30)
            assert not is_limited(world, f"{drill.secret}-{drill.n_faults}-down")
            world.valkey.restart()
            wait_until(
                lambda: is_told_of_trajectories(world, cookie), what="live events resume", timeout_s=TOLD_WITHIN_S
            )
            wait_until(lambda: all(world.ask("redis")), what="readyz is content", timeout_s=TOLD_WITHIN_S)
        tally = drill.finish()
    note(tally)
    assert not drill.failures, drill.failures[:3]


def is_next_limited(world: World, secrets: Iterator[str]) -> bool:
    return is_limited(world, next(secrets))


def is_limited(world: World, secret: str) -> bool:
    """Say whether a new key that may call once a minute is refused the second time."""
    world.make_key(secret, requests_per_minute=1)
    body = Chat().ask([Turn(question=secret)], n_words=3, is_streamed=False)
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=world.urls[0], headers=headers, timeout=30, trust_env=False) as http:
        first, second = (http.post(Chat.path, json=body).status_code for _ in range(2))
    assert first == 200
    return second == 429
