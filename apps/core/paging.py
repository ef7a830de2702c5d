"""Keyset paging: newest first by id, no offsets, no counts. Knows only that ids sort by time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar

from django.db.models import Model, QuerySet

from apps.core.errors import InvalidInput
from apps.core.ids import ID_MAX_LENGTH

M = TypeVar("M", bound=Model)
MAX_LIMIT = 200
DEFAULT_LIMIT = 50


class PageQuery(TypedDict):
    """Which page a caller asks for."""

    before: str | None
    limit: int


def read_page_query(query: Mapping[str, str]) -> PageQuery:
    """Return `before` and `limit` from a query string. Raises InvalidInput for what cannot be read."""
    before, limit = query.get("before") or None, query.get("limit") or str(DEFAULT_LIMIT)
    if before is not None and (len(before) > ID_MAX_LENGTH or "\0" in before):
        raise InvalidInput("before must be an id, as `next_before` gave it", field="before")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit) <= MAX_LIMIT:
        raise InvalidInput(f"limit must be a whole number from 1 to {MAX_LIMIT}", field="limit")
    return PageQuery(before=before, limit=int(limit))


@dataclass(frozen=True, kw_only=True)
class Page(Generic[M]):
    """One page; `next_before` is the id to ask for the following page with, None at the end."""

    items: Sequence[M]
    next_before: str | None


def page_newest_first(rows: QuerySet[M], *, before: str | None, limit: int) -> Page[M]:
    """Return up to `limit` (1 to 200) rows whose id sorts before `before`."""
    limit = max(1, min(limit, MAX_LIMIT))
    if before:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: limit + 1])
    more = len(found) > limit
    items = found[:limit]
    return Page(items=items, next_before=str(items[-1].pk) if more else None)
