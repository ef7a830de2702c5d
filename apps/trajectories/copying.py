"""Reads and writes many long rows in Postgres' binary form. Knows no table.

New rows go by COPY: `bulk_create` makes one statement of them, which Django and psycopg take apart, fill in as text and
put together again, and that takes longer than all else that the recorder does.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any, TypeVar

import psycopg
from django.db import connection, models
from django.db.backends.utils import CursorDebugWrapper, CursorWrapper
from django.db.models.base import ModelState
from psycopg import sql
from psycopg.types.json import Jsonb

Row = TypeVar("Row", bound=models.Model)

_SIZE = re.compile(r"\(\d+\)")  # of varchar(64): the type's name is without


def run_statement(statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Run a statement of lists, each `%b`, and return what it answers. Raises Django's database errors.

    The lists go beside it, in binary: Django's own cursor writes them into the statement, item by item.
    """
    connection.ensure_connection()
    wrap = CursorDebugWrapper if connection.queries_logged else CursorWrapper
    with wrap(psycopg.Cursor(connection.connection), connection) as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall() if cursor.description else []


def check_keys_by_one_plan() -> None:
    """Have Postgres plan but once what it looks up for each new row when the transaction ends.

    Left to choose, it plans the look-up of a step's parent anew for each step, because the table is cut into months:
    that takes ten times as long as looking. To be called at the end of the transaction: `run_statement` takes such
    plans too from here on, though its lists are better seen first.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('plan_cache_mode', 'force_generic_plan', true)")


def read_rows(rows: models.QuerySet[Row]) -> list[Row]:
    """Return the rows of a plain query, whole. Raises Django's database errors."""
    statement, values = rows.query.sql_with_params()
    fields = _list_fields(rows.model)
    names = [field.attname for field in fields]
    convert = [(place, field.from_db_value) for place, field in enumerate(fields) if hasattr(field, "from_db_value")]
    connection.ensure_connection()
    found = []
    with connection.wrap_database_errors, psycopg.Cursor(connection.connection) as cursor:
        for row in cursor.execute(statement, values, binary=True):
            read = list(row)
            for place, from_db_value in convert:
                read[place] = from_db_value(read[place], None, connection)
            found.append(_build(rows.model, zip(names, read, strict=True), db=rows.db))
    return found


def _build(model: type[Row], values: Iterable[tuple[str, Any]], *, db: str | None) -> Row:
    """Return what the model's constructor does in a fifth of its time. `db`: where the row is already."""
    row = model.__new__(model)
    row._state = ModelState()  # noqa: SLF001 (as Django does)
    row._state.db, row._state.adding = db, db is None  # noqa: SLF001
    row.__dict__.update(values)
    return row


def make_row(model: type[Row], **values: Any) -> Row:
    """Return `model(**values)`, to be copied. Keys go by their columns' names (`parent_id`)."""
    constants, makers = _list_defaults(model)
    made = {name: make() for name, make in makers.items() if name not in values}
    row = _build(model, ({**constants, **made, **values}).items(), db=None)
    if len(row.__dict__) != len(_list_fields(model)) + 1:
        raise TypeError(f"{model.__name__} has no such columns: {values.keys() - constants.keys() - makers.keys()}")
    return row


@cache
def _list_defaults(model: type[models.Model]) -> tuple[Mapping[str, Any], Mapping[str, Callable[[], Any]]]:
    """Return the defaults of its columns: values, and what makes them."""
    fields = _list_fields(model)
    made = {field.attname: field.default for field in fields if field.has_default() and callable(field.default)}
    return {field.attname: field.get_default() for field in fields if field.attname not in made}, made


def copy_rows(rows: Sequence[models.Model]) -> None:
    """Insert rows of one model. Like `bulk_create`, but for rows whose keys are known and whose defaults are made.

    Raises Django's database errors; then none is inserted.
    """
    if not rows:
        return
    model = type(rows[0])
    read_values, json_at = _list_values(model)
    with (
        connection.wrap_database_errors,
        connection.cursor() as cursor,
        cursor.copy(_make_statement(model)) as copy,
    ):
        copy.set_types(_list_types(model))
        for row in rows:
            values = list(read_values(row.__dict__))
            for place in json_at:
                values[place] = Jsonb(values[place])
            copy.write_row(values)
    for row in rows:
        row._state.adding = False  # noqa: SLF001 (as Django does)


@cache
def _list_values(model: type[models.Model]) -> tuple[Callable[[dict[str, Any]], tuple[Any, ...]], list[int]]:
    """Return what reads a row's values out of its `__dict__`, and where among them is JSON, the only kind that psycopg
    does not know."""
    fields = _list_fields(model)
    json_at = [place for place, field in enumerate(fields) if isinstance(field, models.JSONField)]
    return itemgetter(*(field.attname for field in fields)), json_at


def _list_fields(model: type[models.Model]) -> Sequence["models.Field[Any, Any]"]:
    return model._meta.local_concrete_fields  # noqa: SLF001 (Django's way to ask)


@cache
def _make_statement(model: type[models.Model]) -> sql.Composed:
    names = [sql.Identifier(field.attname if field.column is None else field.column) for field in _list_fields(model)]
    table = sql.Identifier(model._meta.db_table)  # noqa: SLF001 (Django's way to ask)
    return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(table, sql.SQL(", ").join(names))


@cache
def _list_types(model: type[models.Model]) -> list[str]:
    return [_SIZE.sub("", field.db_type(connection) or "") for field in _list_fields(model)]
