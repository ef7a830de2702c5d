"""Threads of requests: kept, one to a request, and not lent while they are still at work."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from apps.core import threads
from apps.core.threads import KeptThreads


class Door:
    """An application that does its work in synchronous code, twice, as middleware and a view do."""

    def __init__(self) -> None:
        self.app = KeptThreads(self._serve)
        self.answers: list[Any] = []

    async def call(self, work: Callable[[], object]) -> None:
        await self.app({"type": "http", "work": work}, None, None)  # type: ignore[arg-type]

    async def _serve(self, scope: Any, _receive: Any, _send: Any) -> None:
        for _ in range(2):
            self.answers.append(await sync_to_async(scope["work"])())


async def settle(door: Door, n_threads: int) -> None:
    """Wait until so many of the threads that answered are still there."""
    for _ in range(500):
        if len({one.ident for one in threading.enumerate()}.intersection(door.answers)) == n_threads:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(door.answers)


@pytest.mark.django_db(transaction=True)
async def test_one_request_after_another_has_the_same_thread_and_connection() -> None:
    door = Door()

    def look() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return threading.get_ident(), cursor.fetchone()[0]

    def hang_up() -> None:
        connection.close()

    for _ in range(3):
        await door.call(look)
        await asyncio.sleep(0.05)
    assert (len(door.answers), len(set(door.answers))) == (6, 1)
    await door.call(hang_up)


async def test_requests_at_once_have_a_thread_each_and_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MOST_KEPT", 2)
    door, all_there = Door(), threading.Barrier(5, timeout=10)

    def meet() -> int:
        all_there.wait()
        return threading.get_ident()

    await asyncio.gather(*(door.call(meet) for _ in range(5)))
    assert len(set(door.answers)) == 5
    await settle(door, 2)


async def test_a_thread_at_work_for_a_request_that_was_given_up_is_not_lent() -> None:
    door, begun, go_on = Door(), threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(10)

    given_up = asyncio.create_task(door.call(work))
    await asyncio.to_thread(begun.wait)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    await asyncio.wait_for(door.call(threading.get_ident), 5)
    assert len(door.answers) == 2
    go_on.set()
