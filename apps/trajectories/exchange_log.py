"""Plain SQL between the gateway and the pool: the token path has no time for the ORM.

Knows the two tables' columns (a test compares them with the models); does not know who calls or when.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from struct import Struct
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from apps.core.contracts.exchange import ExchangeRecord
from apps.trajectories.packing import pack_all, unpack

CHANNEL = "claw_exchanges"  # NOTIFY: there are new rows to fold
_COLUMNS = tuple(field.name for field in fields(ExchangeRecord))
_read_values = attrgetter(*_COLUMNS)
_PACKED = tuple(map(_COLUMNS.index, ("request", "response", "chat_request", "chat_response")))
_BOOL, _BYTEA, _TEXT, _BYTEA_ARRAY, _TIME = 16, 17, 25, 1001, 1184
_ARRAY_HEAD = Struct("!iiiii")  # dimensions, has nulls, type of the elements, length, first index
_INT32, _INT64 = Struct("!i"), Struct("!q")
_EMPTY_ARRAY = _ARRAY_HEAD.pack(0, 0, _BYTEA, 0, 0)[:12]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_prepared: "WeakKeyDictionary[psycopg.AsyncConnection[Any], set[int]]" = WeakKeyDictionary()


def _dump_array(items: tuple[bytes, ...]) -> bytes:
    if not items:
        return _EMPTY_ARRAY
    parts = [_ARRAY_HEAD.pack(1, 0, _BYTEA, len(items), 1)]
    for item in items:
        parts += (_INT32.pack(len(item)), item)
    return b"".join(parts)


def _dump_time(moment: datetime | None) -> bytes | None:
    return None if moment is None else _INT64.pack((moment - _EPOCH) // _MICROSECOND)


def _dump_bool(value: object) -> bytes:
    return b"\x01" if value else b"\x00"


def _keep(value: bytes | None) -> bytes | None:
    return value


# How a field becomes Postgres' binary form, by its annotation, and which type that is.
_FORMS: dict[object, tuple[Callable[[Any], bytes | None], int]] = {
    str: (str.encode, _TEXT),
    bytes: (_keep, _BYTEA),
    bytes | None: (_keep, _BYTEA),
    tuple[bytes, ...]: (_dump_array, _BYTEA_ARRAY),
    bool: (_dump_bool, _BOOL),
    datetime: (_dump_time, _TIME),
    datetime | None: (_dump_time, _TIME),
}
_DUMPS, _TYPES = zip(*(_FORMS[field.type] for field in fields(ExchangeRecord)), strict=True)


async def insert_exchanges(connection: psycopg.AsyncConnection[Any], records: Sequence[ExchangeRecord]) -> None:
    """Write the records that the pool does not have yet, and wake the recorder: one statement, so one commit.

    `connection` must be in autocommit mode and used by nobody else meanwhile. On an error none is written; when it is
    cancelled nobody knows, and the connection can only be closed.

    Spoken to libpq itself, in binary: psycopg's own way takes several times as long, and each call waits for it.
    """
    values = [dump(value) for record in records for dump, value in zip(_DUMPS, _read_values(record), strict=True)]
    long = [at + column for at in range(0, len(values), len(_COLUMNS)) for column in _PACKED if values[at + column]]
    for place, text in zip(long, await pack_all([values[place] for place in long]), strict=True):
        values[place] = text
    pgconn, n_rows = connection.pgconn, len(records)
    name = b"exchanges_%d" % n_rows
    known = _prepared.setdefault(connection, set())  # the numbers of rows for which it has the statement
    if n_rows not in known:
        pgconn.send_prepare(name, _insert_statement(n_rows), _TYPES * n_rows)
        await _finish(pgconn)
        known.add(n_rows)
    pgconn.send_query_prepared(name, values, [1] * len(values))
    await _finish(pgconn)


async def _finish(pgconn: PGconn) -> None:
    """Send what is queued and return when the server has done it; raises psycopg.Error."""
    is_sending, error = bool(pgconn.flush()), None
    while True:
        await _wait_for(pgconn.socket, is_sending=is_sending)
        pgconn.consume_input()
        is_sending = is_sending and bool(pgconn.flush())
        while not is_sending and not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                if error is not None:
                    raise error
                return
            if result.status == ExecStatus.FATAL_ERROR:
                error = error_from_result(result)


async def _wait_for(descriptor: int, *, is_sending: bool) -> None:
    """Return when something has come, or may be sent."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, _wake, ready)
    if is_sending:
        loop.add_writer(descriptor, _wake, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
        if is_sending:
            loop.remove_writer(descriptor)


def _wake(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


@cache
def _insert_statement(n_rows: int) -> bytes:
    columns = ", ".join([*_COLUMNS, "fold_error"])
    n = len(_COLUMNS)
    rows = [f"({', '.join(f'${row * n + place}' for place in range(1, n + 1))}, '')" for row in range(n_rows)]
    statement = (
        f"WITH written AS (INSERT INTO trajectories_exchange ({columns}) "  # noqa: S608 (names from the dataclass)
        f"VALUES {', '.join(rows)} ON CONFLICT (id) DO NOTHING) SELECT pg_notify('{CHANNEL}', '')"
    )
    return statement.encode()


@dataclass(frozen=True, slots=True)
class TrajectoryStub:
    """As much of a trajectory as the gateway must know to let a call in."""

    project_id: str
    state: str


async def find_trajectory(connection: psycopg.AsyncConnection[Any], trajectory_id: str) -> TrajectoryStub | None:
    """Return whose trajectory this is and whether it is open; None when there is none."""
    cursor = await connection.execute(
        "SELECT project_id, state FROM trajectories_trajectory WHERE id = %s", [trajectory_id]
    )
    row = await cursor.fetchone()
    return TrajectoryStub(project_id=row[0], state=row[1]) if row else None


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """As much of an exchange as the gateway needs to go on from its answer or to show it again."""

    request: bytes
    response: bytes
    chat_request: bytes | None
    chat_response: bytes | None
    status: str


async def find_answers(
    connection: psycopg.AsyncConnection[Any], response_ids: Sequence[str], *, project_id: str
) -> dict[str, StoredAnswer]:
    """Return the project's answers by their ids; those that it does not have, or that say nothing, are left out."""
    cursor = await connection.execute(
        "SELECT response_id, request, response, chat_request, chat_response, status FROM trajectories_exchange "
        "WHERE response_id = ANY(%s) AND project_id = %s AND response IS NOT NULL",
        [list(response_ids), project_id],
    )
    return {row[0]: _read_answer(row) for row in await cursor.fetchall()}


def _read_answer(row: tuple[Any, ...]) -> StoredAnswer:
    _, request, response, chat_request, chat_response, status = row
    return StoredAnswer(
        request=unpack(request),
        response=unpack(response),
        chat_request=unpack(chat_request) if chat_request is not None else None,
        chat_response=unpack(chat_response) if chat_response is not None else None,
        status=status,
    )
