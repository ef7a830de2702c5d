"""Makes calls durable before their last byte leaves: one group commit over all calls in flight, else the spool.

Knows Postgres and the spool; does not know what a call is.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import psycopg
import structlog

from apps.core.contracts.exchange import ExchangeRecord
from apps.gateway.database import Connection, connect, is_about_the_row
from apps.gateway.spool import Spool
from apps.trajectories.exchange_log import insert_exchanges, wake_recorder

log = structlog.get_logger(__name__)

COMMIT_TIMEOUT_S = 2.0
RECONNECT_EVERY_S = 0.5
MAX_BATCH = 64
NOTICE_AFTER_S = 0.02  # the recorder hears of all that was written meanwhile at once
DRAIN_S = 10.0
CANCEL_S = 5.0  # a server that hangs may not hear that it need not go on


@dataclass
class _Waiting:
    record: ExchangeRecord
    conversation: str
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
        self._notice: asyncio.TimerHandle | None = None  # when the recorder is to hear of what was written

    @property
    def is_connected(self) -> bool:
        """Whether records go to Postgres at this moment."""
        return self._connection is not None

    async def start(self) -> None:
        """Connect if Postgres answers, and begin to write. Without Postgres the spool takes the records."""
        await self._try_connect()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._keep_connected())]

    async def commit(self, record: ExchangeRecord, *, conversation: str = "") -> None:
        """Return when the record is safe: in Postgres, else on disk. `conversation`: what all of its calls share.

        Should both fail, an error in the log names the exchange, and the agent is served all the same.
        """
        waiting = _Waiting(record, conversation, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._wake.set()
        await asyncio.shield(waiting.done)

    async def stop(self) -> None:
        """Write what is queued, then let go of the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while self._queue:
                    await asyncio.shield(self._queue[-1].done)
        if self._notice is not None:
            self._notice.cancel()
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
            self._wake.clear()
            if batch := self._queue[:MAX_BATCH]:
                await self._write(batch)
                self._end(batch)
            if self._notice is not None and self._notice.when() <= asyncio.get_running_loop().time():
                await self._tell_recorder()

    def _end(self, batch: list[_Waiting]) -> None:
        """Let those go who waited for the batch; see to what follows it."""
        del self._queue[: len(batch)]
        for waiting in batch:
            if not waiting.done.done():
                waiting.done.set_result(None)
        if self._queue:
            self._wake.set()
        if self._notice is None:
            self._notice = asyncio.get_running_loop().call_later(NOTICE_AFTER_S, self._wake.set)

    async def _tell_recorder(self) -> None:
        """Wake it; should it not hear, it looks by itself a second later."""
        self._notice = None
        try:
            await self._ask_database(wake_recorder)
        except DatabaseAwayError:
            pass
        except Exception:  # the edge: calls go on being written whatever it is
            log.exception("recorder.not_woken")

    async def _write(self, batch: list[_Waiting]) -> None:
        """Make the batch durable, each record by itself if together they cannot be."""
        try:
            await self._make_durable(batch)
        except Exception:  # the edge: agents are served and other records written whatever it is
            if len(batch) > 1:
                for waiting in batch:
                    await self._write([waiting])
                return
            self.n_lost += 1
            log.exception("exchange.lost", exchange=batch[0].record.id)

    async def _make_durable(self, batch: list[_Waiting]) -> None:
        records = [waiting.record for waiting in batch]
        conversations = {waiting.record.id: waiting.conversation for waiting in batch}
        try:
            await self._ask_database(
                partial(insert_all, records=records, spool=self.spool, conversations=conversations)
            )
        except DatabaseAwayError:
            await asyncio.to_thread(self.spool.append, records)

    async def _ask_database(self, ask: Callable[[Connection], Awaitable[None]]) -> None:
        """Return when it has been asked; raises DatabaseAwayError, and then the connection is let go of."""
        connection = self._connection
        if connection is None:
            raise DatabaseAwayError("not connected")
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await ask(connection)
        except TimeoutError:
            log.warning("database.hangs", timeout_s=COMMIT_TIMEOUT_S)
            self._abandon(connection)
            raise DatabaseAwayError(f"no answer within {COMMIT_TIMEOUT_S} s") from None
        except (DatabaseAwayError, psycopg.Error) as error:
            log.warning("database.lost", reason=str(error).strip())
            self._forget_connection()
            await connection.close()
            raise DatabaseAwayError(str(error)) from error

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
        except Exception:  # the edge: whatever it is, it is tried again
            log.exception("database.away")
        if self._connection is None:
            self._disconnected.set()
        else:
            self._disconnected.clear()
        return self.is_connected


async def _cancel_and_close(connection: Connection) -> None:
    with contextlib.suppress(psycopg.Error):
        await connection.cancel_safe(timeout=CANCEL_S)
    await connection.close()


class DatabaseAwayError(Exception):
    """Postgres does not take records now; the records themselves may be fine."""


async def insert_all(
    connection: Connection,
    *,
    records: Sequence[ExchangeRecord],
    spool: Spool,
    conversations: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the records in one commit. One that can never be written is set aside, so that the others are not held up.

    `conversations`, by a record's id: what all calls of its conversation share. Raises DatabaseAwayError; then all may
    be tried again later.
    """
    try:
        await insert_exchanges(connection, records, conversations=conversations)
    except (psycopg.Error, OSError, ValueError, TypeError, OverflowError) as error:
        if not is_about_the_row(error):
            raise DatabaseAwayError(str(error).strip() or type(error).__name__) from error
        if len(records) == 1:
            return await asyncio.to_thread(spool.refuse, records[0], reason=str(error).strip())
        half = len(records) // 2
        for some in (records[:half], records[half:]):
            await insert_all(connection, records=some, spool=spool, conversations=conversations)
