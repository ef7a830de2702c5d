"""Keyset paging: newest first by id, no offsets, no counts. Knows only that ids sort by time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from django.db.models import Model, OrderBy, QuerySet

from apps.core.errors import InvalidInput
from apps.core.ids import is_any_id

M = TypeVar("M", bound=Model)
T = TypeVar("T")
MAX_LIMIT = 200


@dataclass(frozen=True, kw_only=True)
class Page(Generic[T]):
    """One page; `next_before` is the id to ask for the following page with, None at the end."""

    items: Sequence[T]
    next_before: str | None


def page_newest_first(rows: QuerySet[M], *, before: str | None, limit: int, order: str | OrderBy = "-pk") -> Page[M]:
    """Return up to `limit` (1 to 200) rows whose id sorts before `before`. `order` is the same, said in another way."""
    limit = max(1, min(limit, MAX_LIMIT))
    if before:
        if not is_any_id(before):
            raise InvalidInput("before is no id: take the `next_before` of the page before", field="before")
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by(order)[: limit + 1])
    more = len(found) > limit
    items = found[:limit]
    return Page(items=items, next_before=str(items[-1].pk) if more else None)
