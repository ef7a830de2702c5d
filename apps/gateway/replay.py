"""Brings the spool back into Postgres once it answers: exactly once, since the pool ignores a record that it has.

Also takes up files that dead processes left. Knows nothing of calls.
"""

import asyncio

import psycopg
import structlog

from apps.gateway.database import connect
from apps.gateway.spool import Spool, WaitingFile
from apps.gateway.writer import DatabaseAwayError, insert_all
from apps.trajectories.exchange_log import wake_recorder

log = structlog.get_logger(__name__)

EVERY_S = 1.0
BATCH = 32


async def replay_forever(spool: Spool) -> None:
    """Look for spooled records once a second; every failure waits for the next look."""
    while True:
        try:
            await replay_once(spool)
        except (psycopg.Error, OSError, DatabaseAwayError) as error:
            log.info("spool.waits", reason=str(error).strip())
        except Exception:  # the edge: what could not be replayed stays on disk whatever it is
            log.exception("spool.crashed")
        await asyncio.sleep(EVERY_S)


async def replay_once(spool: Spool) -> int:
    """Write every waiting file to Postgres and remove it; return how many records. Raises when Postgres is away."""
    if spool.is_empty():
        return 0
    n_records = 0
    async with await connect() as connection:
        for file in spool.waiting_files():
            records = await asyncio.to_thread(WaitingFile.read, file)
            for start in range(0, len(records), BATCH):
                await insert_all(connection, records=records[start : start + BATCH], spool=spool)
            await wake_recorder(connection)
            file.remove()
            n_records += len(records)
    if n_records:
        log.info("spool.replayed", n=n_records)
    return n_records
