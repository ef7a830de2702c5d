"""Plain SQL between the gateway and the pool: the token path has no time for the ORM.

Knows the tables' columns (a test compares them with the models); does not know who calls or when.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from operator import attrgetter, itemgetter
from struct import Struct
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn

from apps.core.contracts.exchange import ExchangeRecord
from apps.trajectories.packing import pack_all, unpack
from apps.trajectories.stems import SHARED, Cut, Stem, Stems, is_cut, join

CHANNEL = "claw_exchanges"  # NOTIFY: there are new rows to fold
_COLUMNS = tuple(field.name for field in fields(ExchangeRecord))
_read_values = attrgetter(*_COLUMNS)
_read_shared = attrgetter(*SHARED)
_SHARED = tuple(map(_COLUMNS.index, SHARED))
_read_places = itemgetter(*_SHARED)
_PACKED = tuple(map(_COLUMNS.index, ("request", "response", "chat_request", "chat_response")))
_PACKED_OF_CUT = tuple(sorted({*_SHARED, *_PACKED}))
_BOOL, _BYTEA, _TEXT, _BYTEA_ARRAY, _TIME = 16, 17, 25, 1001, 1184
_ARRAY_HEAD = Struct("!iiiii")  # dimensions, has nulls, type of the elements, length, first index
_INT32, _INT64 = Struct("!i"), Struct("!q")
_EMPTY_ARRAY = _ARRAY_HEAD.pack(0, 0, _BYTEA, 0, 0)[:12]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NOTICE = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify('%b', '')" % CHANNEL.encode()
_servers: "WeakKeyDictionary[psycopg.AsyncConnection[Any], _Server]" = WeakKeyDictionary()


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


@dataclass(slots=True)
class _Server:
    """What is there where a connection leads: prepared statements, and stems."""

    statements: set[bytes] = field(default_factory=set)
    stems: Stems = field(default_factory=Stems)


@dataclass(slots=True)
class _Row:
    """A record's columns in Postgres' form, and what it is cut by, or the stem that was made of it."""

    values: list[bytes | None]
    cut: Cut | None = None
    stem: Stem | None = None


async def insert_exchanges(
    connection: psycopg.AsyncConnection[Any],
    records: Sequence[ExchangeRecord],
    *,
    conversations: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the records that the pool does not have yet: one statement, so one commit.

    `conversations`, by a record's id: what all calls of its conversation share; what their long texts have in common
    is then written once (`stems.py`), before the first record that needs it.
    `connection` must be in autocommit mode and used by nobody else meanwhile. On an error none is written; when it is
    cancelled nobody knows, and the connection can only be closed.

    Spoken to libpq itself, in binary: psycopg's own way takes several times as long, and each call waits for it.
    """
    server = _servers.get(connection) or _servers.setdefault(connection, _Server())
    rows = [_make_row(record, server.stems, conversations.get(record.id, "")) for record in records]
    await _pack_rows(rows)
    await _write_stems(connection.pgconn, server, [row.cut.stem for row in rows if row.cut is not None])
    ids = [row.cut.stem.id.encode() if row.cut is not None else None for row in rows]
    values = [value for row, stem_id in zip(rows, ids, strict=True) for value in (*row.values, stem_id)]
    await _execute(connection.pgconn, server, _EXCHANGES, values, n_rows=len(rows))


def _make_row(record: ExchangeRecord, stems: Stems, conversation: str) -> _Row:
    values = [dump(value) for dump, value in zip(_DUMPS, _read_values(record), strict=True)]
    name = f"{record.key_id} {conversation}"
    found = stems.cut(_read_shared(record), exchange_id=record.id, conversation=name) if conversation else None
    if not isinstance(found, Cut):
        return _Row(values, stem=found)
    for place, rest in zip(_SHARED, found.rests, strict=True):
        values[place] = rest
    return _Row(values, cut=found)


async def _pack_rows(rows: Sequence[_Row]) -> None:
    """Pack what is long, and put its head before what is cut."""
    places = [(row.values, place) for row in rows for place in (_PACKED if row.cut is None else _PACKED_OF_CUT)]
    texts = [(values, place, text) for values, place in places if (text := values[place])]
    for (values, place, _), packed in zip(texts, await pack_all([text for _, _, text in texts]), strict=True):
        values[place] = packed
    for row in rows:
        if row.cut is not None:
            for place, head in zip(_SHARED, row.cut.heads, strict=True):
                if (rest := row.values[place]) is not None:
                    row.values[place] = head + rest
        elif row.stem is not None:
            row.stem.packed = _read_places(row.values)


async def _write_stems(pgconn: PGconn, server: _Server, stems: Sequence[Stem]) -> None:
    """Write those that are not there yet. A stem without a call, left by a crash in between, goes with its month."""
    new = list({stem.id: stem for stem in stems if not stem.is_written}.values())
    if not new:
        return
    values = [value for stem in new for value in (stem.id.encode(), *await _pack_stem(stem))]
    await _execute(pgconn, server, _STEMS, values, n_rows=len(new))
    for stem in new:
        stem.is_written, stem.packed = True, None


async def _pack_stem(stem: Stem) -> list[bytes | None]:
    """Return its texts as they are stored. What its call had packed needs not be packed again."""
    found = list(stem.packed or stem.texts)
    places = [place for place, text in enumerate(stem.texts) if text is not None and found[place] is text]
    for place, packed in zip(places, await pack_all([stem.texts[place] or b"" for place in places]), strict=True):
        found[place] = packed
    return found


@dataclass(frozen=True, slots=True)
class _Statement:
    """Writes rows of these columns, and of some that are always the same. Prepared once for each number of rows."""

    table: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    always: Mapping[str, str] = field(default_factory=dict)

    def name(self, n_rows: int) -> bytes:
        return f"{self.table}_{n_rows}".encode()

    def spell(self, n_rows: int) -> bytes:
        n = len(self.columns)
        values = (", ".join(f"${row * n + place}" for place in range(1, n + 1)) for row in range(n_rows))
        rows = ", ".join(f"({', '.join([row, *self.always.values()])})" for row in values)
        columns = ", ".join([*self.columns, *self.always])
        return f"INSERT INTO {self.table} ({columns}) VALUES {rows} ON CONFLICT (id) DO NOTHING".encode()  # noqa: S608 (our own names)


_EXCHANGES = _Statement("trajectories_exchange", (*_COLUMNS, "stem_id"), (*_TYPES, _TEXT), always={"fold_error": "''"})
_STEMS = _Statement("trajectories_stem", ("id", *SHARED), (_TEXT, *(_BYTEA for _ in SHARED)))


async def _execute(
    pgconn: PGconn, server: _Server, statement: _Statement, values: Sequence[bytes | None], *, n_rows: int
) -> None:
    """Run a statement with values in binary; raises psycopg.Error."""
    name = statement.name(n_rows)
    if name not in server.statements:
        pgconn.send_prepare(name, statement.spell(n_rows), statement.types * n_rows)
        await _finish(pgconn)
        server.statements.add(name)
    pgconn.send_query_prepared(name, values, [1] * len(values))
    await _finish(pgconn)


async def wake_recorder(connection: psycopg.AsyncConnection[Any]) -> None:
    """Tell the recorder that there are new rows; raises psycopg.Error.

    Never together with the rows: Postgres lets one transaction that has a notice commit after the other. For the disk
    nobody needs to wait.
    """
    connection.pgconn.send_query(_NOTICE)
    await _finish(connection.pgconn)


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


_FIND_ANSWERS = """
    SELECT response_id, call.request, call.response, call.chat_request, chat_response, status,
        stem.request, stem.response, stem.chat_request
    FROM trajectories_exchange call LEFT JOIN trajectories_stem stem ON stem.id = call.stem_id
    WHERE response_id = ANY(%s) AND project_id = %s AND call.response IS NOT NULL
"""


async def find_answers(
    connection: psycopg.AsyncConnection[Any], response_ids: Sequence[str], *, project_id: str
) -> dict[str, StoredAnswer]:
    """Return the project's answers by their ids; those that it does not have, or that say nothing, are left out."""
    cursor = await connection.execute(_FIND_ANSWERS, [list(response_ids), project_id])
    return {row[0]: _read_answer(row) for row in await cursor.fetchall()}


def _read_answer(row: tuple[Any, ...]) -> StoredAnswer:
    _, request, response, chat_request, chat_response, status, *stem = row
    return StoredAnswer(
        request=_read_text(request, stem=stem[0]) or b"",
        response=_read_text(response, stem=stem[1]) or b"",
        chat_request=_read_text(chat_request, stem=stem[2]),
        chat_response=_read_text(chat_response),
        status=status,
    )


def _read_text(kept: bytes | None, *, stem: bytes | None = None) -> bytes | None:
    if kept is None or not is_cut(kept):
        return None if kept is None else unpack(kept)
    return join(kept, None if stem is None else unpack(stem))
