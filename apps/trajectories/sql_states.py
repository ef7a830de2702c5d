"""What Postgres means by an error, told from its five-letter code. Knows no statement."""

from django.db import Error, InterfaceError, OperationalError

# Classes of SQLSTATE that say "not now" and nothing about the exchange: connection, rollback, a table that is not
# migrated yet, resources, locks, shutdown.
_TRANSIENT_CLASSES = ("08", "40", "42", "53", "55", "57")


def _sql_state(error: BaseException) -> str | None:
    """Return Postgres's five-letter code, None for an error of the connection itself."""
    return getattr(error.__cause__, "sqlstate", None)


def is_transient(error: Exception) -> bool:
    """Say whether the error is about the server or the moment and not about the row."""
    state = _sql_state(error)
    if state is None:
        return isinstance(error, (OperationalError, InterfaceError))  # the connection itself
    return isinstance(error, Error) and state.startswith(_TRANSIENT_CLASSES)


def is_deadlock(error: Exception) -> bool:
    """Say whether Postgres took this transaction back because of another one: alone it will go through."""
    return (_sql_state(error) or "").startswith("40")


def is_lock_refused(error: Exception) -> bool:
    """Say whether somebody else held a lock for longer than was to be waited."""
    return _sql_state(error) == "55P03"  # lock_not_available


def is_out_of_time(error: Exception) -> bool:
    """Say whether the statement took longer than it might."""
    return _sql_state(error) == "57014"  # query_canceled
