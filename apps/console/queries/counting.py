"""Counts that cannot get slow: they stop at a limit and say so."""

from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class Count:
    """`n`, or more than `n` when `is_more`."""

    n: int
    is_more: bool = False

    def __str__(self) -> str:
        return f"{self.n:,}{'+' if self.is_more else ''}"

    def __bool__(self) -> bool:
        return self.n > 0


def count_up_to(rows: QuerySet[Any], *, limit: int = LIMIT) -> Count:
    """Count rows, at most `limit` of them."""
    n = rows.order_by()[: limit + 1].count()
    return Count(n=min(n, limit), is_more=n > limit)
