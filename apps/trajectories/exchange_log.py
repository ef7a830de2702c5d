"""Plain SQL between the gateway and the pool: the token path has no time for the ORM.

Knows the two tables' columns (a test compares them with the models); does not know who calls or when.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain
from operator import attrgetter
from struct import Struct
from typing import Any, LiteralString

import psycopg
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

from apps.core.contracts.exchange import ExchangeRecord

CHANNEL = "claw_exchanges"  # NOTIFY: there are new rows to fold
_COLUMNS = tuple(field.name for field in fields(ExchangeRecord))
_read_values = attrgetter(*_COLUMNS)
_BYTEA, _BYTEA_ARRAY = 17, 1001
_ARRAY_HEAD = Struct("!iiiii")  # dimensions, has nulls, type of the elements, length, first index
_ELEMENT_HEAD = Struct("!i")
_EMPTY_ARRAY = _ARRAY_HEAD.pack(0, 0, _BYTEA, 0, 0)[:12]


class BytesArrayDumper(Dumper):
    """Sends a tuple of bytes as a `bytea[]` in Postgres' binary form; psycopg's own way, by text, takes ten times as
    long.
    """

    format = Format.BINARY
    oid = _BYTEA_ARRAY

    def dump(self, obj: tuple[bytes, ...]) -> bytes:
        if not obj:
            return _EMPTY_ARRAY
        parts = [_ARRAY_HEAD.pack(1, 0, _BYTEA, len(obj), 1)]
        for item in obj:
            parts += (_ELEMENT_HEAD.pack(len(item)), item)
        return b"".join(parts)


async def insert_exchanges(connection: psycopg.AsyncConnection[Any], records: Sequence[ExchangeRecord]) -> None:
    """Write the records that the pool does not have yet, and wake the recorder: one statement, so one commit.

    `connection` must be in autocommit mode. On an error none is written.
    """
    if connection.adapters.get_dumper(tuple, PyFormat.AUTO) is not BytesArrayDumper:
        connection.adapters.register_dumper(tuple, BytesArrayDumper)
    values = list(chain.from_iterable(map(_read_values, records)))
    async with psycopg.AsyncRawCursor(connection) as cursor:  # raw: psycopg need not parse the text each time
        await cursor.execute(_insert_statement(len(records)), values)


@cache
def _insert_statement(n_rows: int) -> LiteralString:
    columns = ", ".join([*_COLUMNS, "fold_error"])
    n = len(_COLUMNS)
    rows = [f"({', '.join(f'${row * n + place}' for place in range(1, n + 1))}, '')" for row in range(n_rows)]
    return (
        f"WITH written AS (INSERT INTO trajectories_exchange ({columns}) "  # noqa: S608 (names from the dataclass)
        f"VALUES {', '.join(rows)} ON CONFLICT (id) DO NOTHING) SELECT pg_notify('{CHANNEL}', '')"
    )


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
    return {row[0]: StoredAnswer(*row[1:]) for row in await cursor.fetchall()}
