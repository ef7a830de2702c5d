"""The months into which the pool's largest tables are cut: exchanges and their stems by their own id, steps by their
trajectory's.

Ids sort by time, so a month is a range of ids. Months are made ahead; what belongs to none (a clock that is years off,
housekeeping that did not run) is kept in the part `other`, said loudly, and moved when its month is made. Old months
go as a whole: `retention.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from apps.core.ids import first_id, read_time
from apps.trajectories.sql_states import is_lock_refused

log = structlog.get_logger(__name__)

AHEAD = 3
START, OTHER = "start", "other"  # what was there before the first month; what belongs to none
_LOCK_TIMEOUT = "3s"  # who waits for a table's lock keeps all who come after it waiting
_MOVE = """
    WITH moved AS (DELETE FROM {table}_{other} WHERE {column} >= %s AND {column} < %s RETURNING *)
    INSERT INTO {name} SELECT * FROM moved
"""
_ASTRAY = "SELECT EXISTS (SELECT FROM {table}_{other} WHERE {column} >= %s AND {column} < %s)"
_COUNT_ASTRAY = "SELECT count(*) FROM (SELECT FROM {table}_{other} LIMIT %s) found"
_NOT_ANALYZED = """
    SELECT relname FROM pg_stat_user_tables
    WHERE relname = ANY(%s) AND coalesce(last_analyze, 'epoch') < now() - interval '1 day'
"""
_HAS_ROWS = "SELECT EXISTS (SELECT FROM {part})"
_KEYS_TO = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype = 'f' AND confrelid = %s::regclass AND conparentid = 0
"""
_PARTS = """
    SELECT part.relname, pg_get_expr(part.relpartbound, part.oid), greatest(part.reltuples, 0)::bigint,
        pg_total_relation_size(part.oid)
    FROM pg_inherits JOIN pg_class part ON part.oid = inhrelid
    WHERE inhparent = %s::regclass ORDER BY part.relname
"""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table that is cut by `column`, which holds ids with this prefix."""

    name: str
    column: str
    prefix: str

    def name_part(self, month: datetime) -> str:
        """Return the name of the month's part."""
        return f"{self.name}_{month:%Y_%m}"


CALLS = Table(name="trajectories_exchange", column="id", prefix="exch")
STEPS = Table(name="trajectories_step", column="trajectory_id", prefix="traj")
STEMS = Table(name="trajectories_stem", column="id", prefix="stem")
TABLES = (CALLS, STEPS, STEMS)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a table holds of one month. `since` is None for `start` and `other`, `until` for `other`; `n_rows` is
    Postgres' estimate."""

    table: Table
    name: str
    since: datetime | None
    until: datetime | None
    n_rows: int
    n_bytes: int


def start_of_month(moment: datetime) -> datetime:
    """Return the first moment of the month, in UTC."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def go_back(moment: datetime, *, n_months: int) -> datetime:
    """Return the first moment of the month so many months before the moment's own."""
    month = start_of_month(moment)
    for _ in range(n_months):
        month = start_of_month(month - timedelta(days=1))
    return month


def next_month(month: datetime) -> datetime:
    """Return the first moment of the month after."""
    return start_of_month(month + timedelta(days=32))


def list_parts(table: Table) -> list[Part]:
    """Return the table's parts, the oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(_PARTS, [table.name])
        rows = cursor.fetchall()
    parts = [_read_part(table, row) for row in rows]
    return sorted(parts, key=lambda part: (part.until or datetime.max.replace(tzinfo=UTC), part.name))


def _read_part(table: Table, row: tuple[str, str, int, int]) -> Part:
    """A bound reads `FOR VALUES FROM ('traj_…') TO ('traj_…')`, or `FROM (MINVALUE) TO …`, or `DEFAULT`."""
    name, bound, n_rows, n_bytes = row
    moments = [read_time(word) for word in bound.split("'") if word.startswith(f"{table.prefix}_")]
    return Part(
        table=table,
        name=name,
        since=moments[0] if len(moments) == 2 else None,
        until=moments[-1] if moments else None,
        n_rows=n_rows,
        n_bytes=n_bytes,
    )


def make_months(*, ahead: int = AHEAD, now: datetime | None = None) -> list[str]:
    """Make the parts that are missing until `ahead` months from now; return their names.

    A table that somebody is using for long is left for the next time.
    """
    made = []
    for table in TABLES:
        for month in _missing_months(table, until=(now or timezone.now()) + timedelta(days=31 * ahead)):
            try:
                _make_part(table, month)
            except OperationalError as error:
                if not is_lock_refused(error):
                    raise
                log.warning("months.busy", table=table.name, month=f"{month:%Y-%m}")
                break
            made.append(table.name_part(month))
    return made


def _missing_months(table: Table, *, until: datetime) -> Iterator[datetime]:
    parts = [part for part in list_parts(table) if part.until is not None]
    known = {part.since for part in parts}
    month = min(part.until for part in parts if part.until is not None and part.since is None)
    while month <= until:
        if month not in known:
            yield month
        month = next_month(month)


@transaction.atomic
def _make_part(table: Table, month: datetime) -> None:
    name, low, high = table.name_part(month), first_id(table.prefix, month), first_id(table.prefix, next_month(month))
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
        cursor.execute(f"CREATE TABLE {name} (LIKE {table.name} INCLUDING ALL)")
        with _without_keys_to_moved(cursor, table, low, high) as is_astray:
            if is_astray:
                move = _MOVE.format(table=table.name, other=OTHER, column=table.column, name=name)
                cursor.execute(move, [low, high])
                log.warning("months.moved", table=table.name, part=name, n=cursor.rowcount)
            cursor.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name} FOR VALUES FROM (%s) TO (%s)", [low, high]
            )
    log.info("months.made", table=table.name, month=f"{month:%Y-%m}")


@contextmanager
def _without_keys_to_moved(cursor: CursorWrapper, table: Table, low: str, high: str) -> Iterator[bool]:
    """Say whether rows of the month are in `other`. Foreign keys to them are away in the block: Postgres believes that
    a row which leaves a part by a DELETE is gone. To build them anew it reads the tables once.
    """
    cursor.execute(_ASTRAY.format(table=table.name, other=OTHER, column=table.column), [low, high])
    is_astray = cursor.fetchone()[0]
    cursor.execute(_KEYS_TO, [table.name])
    keys = cursor.fetchall() if is_astray else []
    for of, key, _ in keys:
        cursor.execute(f"ALTER TABLE {of} DROP CONSTRAINT {key}")
    yield is_astray
    for of, key, meaning in keys:
        cursor.execute(f"ALTER TABLE {of} ADD CONSTRAINT {key} {meaning}")


def drop_parts(table: Table, *, before: datetime) -> None:
    """Drop the parts that end at `before` or earlier: an empty `start` takes their place. In the caller's transaction.

    Raises OperationalError when somebody uses the table for long, IntegrityError when rows are still referred to.
    """
    ended = list_ended_parts(table, before=before)
    if ended:
        _replace_parts(table, ended, until=before)


@transaction.atomic
def make_earlier_months(*, since: datetime) -> None:
    """Make the months from `since` on that the part `start` holds now, for a pool that is given a past. Does nothing
    when there is anything in it."""
    since = start_of_month(since)
    for table in TABLES:
        start = list_parts(table)[0]
        if start.until is None or start.until <= since or has_rows(start):
            continue
        _replace_parts(table, [start], until=since)
        month = since
        while month < start.until:
            _make_part(table, month)
            month = next_month(month)


def _replace_parts(table: Table, parts: Sequence[Part], *, until: datetime) -> None:
    """Drop parts and make an empty `start` that ends at `until`."""
    start = f"{table.name}_{START}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])
        for part in parts:
            cursor.execute(f"ALTER TABLE {table.name} DETACH PARTITION {part.name}")
            cursor.execute(f"DROP TABLE {part.name}")
        cursor.execute(f"CREATE TABLE {start} (LIKE {table.name} INCLUDING ALL)")
        cursor.execute(
            f"ALTER TABLE {table.name} ATTACH PARTITION {start} FOR VALUES FROM (MINVALUE) TO (%s)",
            [first_id(table.prefix, until)],
        )


def has_rows(part: Part) -> bool:
    """Say whether anything is in the part."""
    with connection.cursor() as cursor:
        cursor.execute(_HAS_ROWS.format(part=part.name))
        return bool(cursor.fetchone()[0])


def list_ended_parts(table: Table, *, before: datetime) -> list[Part]:
    """Return the parts that hold nothing of `before` or later."""
    return [part for part in list_parts(table) if part.until is not None and part.until <= before]


def analyze_tables() -> None:
    """Count anew what the planner knows of the whole tables: autovacuum looks at the parts alone. Once a day."""
    with connection.cursor() as cursor:
        cursor.execute(_NOT_ANALYZED, [[table.name for table in TABLES]])
        for (name,) in cursor.fetchall():
            cursor.execute(f"ANALYZE {name}")


def count_astray(*, limit: int = 1000) -> dict[str, int]:
    """Return for each table how many rows belong to no month, at most `limit`; tables that have none are left out."""
    counts = {}
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(_COUNT_ASTRAY.format(table=table.name, other=OTHER), [limit])
            counts[table.name] = cursor.fetchone()[0]
    return {name: n for name, n in counts.items() if n}
