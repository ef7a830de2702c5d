"""Empties the test database after a test that committed, and lets go of it at the end. Knows no table by name."""

from functools import cache

from django.db import connection, transaction

KEPT = ("django_content_type", "auth_permission", "django_migrations")  # what migrating wrote


def empty_tables() -> None:
    """Delete every row that tests left.

    Django empties all tables and then writes its content types and permissions anew, which takes longer than most
    tests; few of the tables have rows, and few rows.
    """
    tables = _find_tables()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"LOCK {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")  # what is being written ends first
        cursor.execute(" UNION ALL ".join(f"(SELECT '{table}' FROM {table} LIMIT 1)" for table in tables))  # noqa: S608
        filled = [row[0] for row in cursor.fetchall()]
        cursor.execute("SET LOCAL session_replication_role = replica")  # no foreign key asks for an order
        for table in filled:
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608


@cache
def _find_tables() -> tuple[str, ...]:
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return tuple(connection.ops.quote_name(name) for name in sorted(names) if name not in KEPT)


def end_other_connections() -> None:
    """End what threads and children forgot to close: one of them would keep the database from being dropped."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid()"
        )
