"""Counts the calls of agents whose capture is off: all that is kept of them is their number.

Counted in memory and added to the table every few seconds, so a killed process forgets the last few seconds' number.
"""

import asyncio
from collections import Counter

import structlog
from django.db import Error as DatabaseError
from django.db import connections

from apps.accounts.services import count_passed_calls

log = structlog.get_logger(__name__)

WRITE_EVERY_S = 2.0


class PassedCallCounter:
    """The counts of this process."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._clock = asyncio.create_task(self._write_on_timer())

    async def stop(self) -> None:
        """Write what is counted."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)
        await self._write()

    def count(self, agent_id: str) -> None:
        self._counts[agent_id] += 1

    async def _write_on_timer(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            try:
                await self._write()
            except Exception:  # the edge: counting goes on whatever it is
                log.exception("passed_calls.crashed")

    async def _write(self) -> None:
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        try:
            await asyncio.to_thread(_write_counts, counts)
        except DatabaseError as error:  # they are written with the next
            self._counts.update(counts)
            log.warning("passed_calls.unwritten", error=str(error).strip())


def _write_counts(counts: Counter[str]) -> None:
    """In a thread whose connection does not outlive the call."""
    try:
        count_passed_calls(counts)
    finally:
        connections.close_all()
