"""The gateway's own connections to Postgres, beside Django's: asynchronous, autocommit, quick to give up."""

from typing import Any

import psycopg
from django.db import connections

CONNECT_TIMEOUT_S = 2
Connection = psycopg.AsyncConnection[tuple[Any, ...]]

# Errors that say "this row", not "this server": out-of-range data, a constraint, a row too large.
_ROW_ERROR_CLASSES = frozenset({"22", "23", "54"})


async def connect() -> Connection:
    """Return a new connection to Django's default database; raises psycopg.OperationalError."""
    entry = connections["default"].settings_dict
    return await psycopg.AsyncConnection.connect(
        host=entry["HOST"] or None,
        port=entry["PORT"] or None,
        dbname=entry["NAME"],
        user=entry["USER"] or None,
        password=entry["PASSWORD"] or None,
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        application_name="claw-gateway",
        **entry["OPTIONS"],
    )


def is_about_the_row(error: Exception) -> bool:
    """Say whether this row can never be written, rather than that the database cannot write now."""
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return error.sqlstate[:2] in _ROW_ERROR_CLASSES
    # Without a state the error was raised while the values were being turned into bytes.
    return isinstance(error, psycopg.DataError | ValueError | TypeError | OverflowError)
