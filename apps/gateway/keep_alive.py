"""Breathes on streams that have nothing to say, so that no proxy on the way takes them for dead.

One clock for all streams of the process. Knows neither dialects nor sockets.
"""

import asyncio
from typing import Protocol

EVERY_S = 5.0


class Breathing(Protocol):
    """A stream that can be breathed on."""

    async def breathe(self) -> None:
        """Send a comment if the stream has been silent for long."""
        ...


class KeepAlive:
    """Knows the streams that are open."""

    def __init__(self) -> None:
        self._streams: set[Breathing] = set()
        self._breaths: set[asyncio.Task[None]] = set()
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._clock = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        tasks = [*self._breaths, *([self._clock] if self._clock else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, stream: Breathing) -> None:
        self._streams.add(stream)

    def discard(self, stream: Breathing) -> None:
        self._streams.discard(stream)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for stream in self._streams:  # each in a task of its own: one that does not read holds up no other
                task = asyncio.create_task(stream.breathe())
                self._breaths.add(task)
                task.add_done_callback(self._breaths.discard)
