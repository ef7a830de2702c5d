"""Makes calls durable before their last byte leaves: one group commit over all calls in flight, else the spool.

Knows Postgres and the spool; does not know what a call is.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import structlog

from apps.core.contracts.exchange import ExchangeRecord
from apps.gateway.database import Connection, connect, is_about_the_row
from apps.gateway.spool import Spool
from apps.trajectories.exchange_log import insert_exchanges

log = structlog.get_logger(__name__)

COMMIT_TIMEOUT_S = 2.0
RECONNECT_EVERY_S = 0.5
MAX_BATCH = 64
DRAIN_S = 10.0
CANCEL_S = 5.0  # a server that hangs may not hear that it need not go on


@dataclass
class _Waiting:
    record: ExchangeRecord
    done: "asyncio.Future[None]"


class ExchangeWriter:
    """One task that writes whatever has queued up while the commit before was under way."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.n_lost = 0
        self._queue: list[_Waiting] = []
        self._wake = asyncio.Event()
        self._connection: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._disconnected = asyncio.Event()
        self._abandoned: set[asyncio.Task[None]] = set()

    @property
    def is_connected(self) -> bool:
        """Whether records go to Postgres at this moment."""
        return self._connection is not None

    async def start(self) -> None:
        """Connect if Postgres answers, and begin to write. Without Postgres the spool takes the records."""
        await self._try_connect()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._keep_connected())]

    async def commit(self, record: ExchangeRecord) -> None:
        """Return when the record is safe: in Postgres, else on disk.

        Should both fail, an error in the log names the exchange, and the agent is served all the same.
        """
        waiting = _Waiting(record, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wake.set()
        await asyncio.shield(waiting.done)

    async def stop(self) -> None:
        """Write what is queued, then let go of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while self._queue:
                    await asyncio.shield(self._queue[-1].done)
        tasks = [*self._tasks, *self._abandoned]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.spool.seal()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            batch = self._queue[:MAX_BATCH]
            try:
                await self._make_durable([waiting.record for waiting in batch])
            except Exception:  # the edge: agents are served and later records written whatever it is
                self.n_lost += len(batch)
                log.exception("exchange.lost", exchanges=[waiting.record.id for waiting in batch])
            del self._queue[: len(batch)]
            if not self._queue:
                self._wake.clear()
            for waiting in batch:
                if not waiting.done.done():
                    waiting.done.set_result(None)

    async def _make_durable(self, records: list[ExchangeRecord]) -> None:
        try:
            await self._insert(records)
        except DatabaseAwayError:
            await asyncio.to_thread(self.spool.append, records)

    async def _insert(self, records: list[ExchangeRecord]) -> None:
        connection = self._connection
        if connection is None:
            raise DatabaseAwayError("not connected")
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await insert_all(connection, records, spool=self.spool)
        except TimeoutError:
            log.warning("database.hangs", timeout_s=COMMIT_TIMEOUT_S)
            self._abandon(connection)
            raise DatabaseAwayError(f"no commit within {COMMIT_TIMEOUT_S} s") from None
        except DatabaseAwayError as error:
            log.warning("database.lost", reason=str(error))
            self._forget_connection()
            await connection.close()
            raise

    def _abandon(self, connection: Connection) -> None:
        """Let go of a commit that hangs. If it is done after all, the replay finds its rows there and leaves them."""
        self._forget_connection()
        closing = asyncio.create_task(_cancel_and_close(connection))
        self._abandoned.add(closing)
        closing.add_done_callback(self._abandoned.discard)

    def _forget_connection(self) -> None:
        self._connection = None
        self._disconnected.set()

    async def _keep_connected(self) -> None:
        while True:
            await self._disconnected.wait()
            if not await self._try_connect():
                await asyncio.sleep(RECONNECT_EVERY_S)

    async def _try_connect(self) -> bool:
        try:
            self._connection = await connect()
        except (psycopg.Error, OSError) as error:
            log.warning("database.away", error=str(error).strip())
            self._disconnected.set()
            return False
        self._disconnected.clear()
        return True


async def _cancel_and_close(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.cancel_safe(timeout=CANCEL_S)
    await connection.close()


class DatabaseAwayError(Exception):
    """Postgres does not take records now; the records themselves may be fine."""


async def insert_all(connection: Connection, records: Sequence[ExchangeRecord], *, spool: Spool) -> None:
    """Write the records in one commit. One that can never be written is set aside, so that the others are not held up.

    Raises DatabaseAwayError; then all may be tried again later.
    """
    try:
        await insert_exchanges(connection, records)
    except (psycopg.Error, OSError, ValueError, TypeError, OverflowError) as error:
        if not is_about_the_row(error):
            raise DatabaseAwayError(str(error).strip() or type(error).__name__) from error
        await _insert_halves(connection, records, spool=spool, error=error)


async def _insert_halves(
    connection: Connection, records: Sequence[ExchangeRecord], *, spool: Spool, error: Exception
) -> None:
    if len(records) == 1:
        await asyncio.to_thread(spool.refuse, records[0], reason=str(error).strip())
        return
    half = len(records) // 2
    await insert_all(connection, records[:half], spool=spool)
    await insert_all(connection, records[half:], spool=spool)
