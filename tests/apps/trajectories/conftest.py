"""The pool's months as a test has them."""

from collections.abc import Iterator

import pytest
from django.db import connection

from apps.trajectories import months


@pytest.fixture
def made_months(transactional_db: None) -> Iterator[None]:
    """Make six months ahead; in the end there are none, as at the beginning."""
    bounds = {table.name: _read_first_bound(table) for table in months.TABLES}
    months.make_months(ahead=6)
    yield
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE trajectories_exchange, trajectories_step CASCADE")
        for table in months.TABLES:
            for part in months.list_parts(table)[:-1]:
                cursor.execute(f"ALTER TABLE {table.name} DETACH PARTITION {part.name}")
                if part.since is not None:
                    cursor.execute(f"DROP TABLE {part.name}")
            start = f"{table.name}_{months.START}"
            cursor.execute(f"ALTER TABLE {table.name} ATTACH PARTITION {start} {bounds[table.name]}")


def _read_first_bound(table: months.Table) -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = %s", [f"{table.name}_{months.START}"]
        )
        return str(cursor.fetchone()[0])
