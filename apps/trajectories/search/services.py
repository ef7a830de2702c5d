"""What REST and the console call to search. Knows no HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any

from django.db import OperationalError, connection, transaction
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.core.paging import Page, page_newest_first
from apps.trajectories.models import Trajectory
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.recorder import sql_state
from apps.trajectories.search.compiling import Scope, narrow_rows
from apps.trajectories.search.language import Query, parse_query

PATIENCE_MS = 8_000
DIRECT_MS = 120  # then an index does not serve the search
WALK_MS = 100
FIRST_STRETCH = 1000  # trajectories
LAST_ID = f"traj_{'z' * 26}"
_STOPPED = "57014"  # query_canceled: its time was up


class TooSlow(InvalidInput):
    """A search that no index narrows enough."""

    status = 422
    code = "search_too_slow"


def find_matching(*, project: Project, query: Query, now: datetime | None = None) -> TrajectoryQuerySet:
    """Return the project's trajectories for which the search holds, in no order."""
    return narrow_rows(
        Trajectory.objects.of_project(project), query, scope=Scope(project=project, now=now or timezone.now())
    )


@dataclass(frozen=True, kw_only=True)
class Found(Page[Trajectory]):
    """One page of a search. `is_cut`: it was ended early, and goes on from `next_before`; there may be more until then
    than the page has."""

    is_cut: bool = False


def search(*, project: Project, q: str, before: str | None, limit: int, **filters: Any) -> Found:
    """Return one page of what a search finds, newest first; `filters` are those of `TrajectoryQuerySet.matching`.

    Raises SearchError and TooSlow.
    """
    return find_page(project=project, query=parse_query(q), before=before, limit=limit, **filters)


def find_page(*, project: Project, query: Query, before: str | None, limit: int, **filters: Any) -> Found:
    """Return one page, newest first. What no index narrows is looked for among the newest, as far as time allows.

    Raises TooSlow when even a little of that takes too long.
    """
    try:
        with patience(limit_ms=DIRECT_MS):
            rows = find_matching(project=project, query=query).matching(**filters)
            page = page_newest_first(rows, before=before, limit=limit)
            return Found(items=page.items, next_before=page.next_before)
    except TooSlow:
        with patience():
            rows = find_matching(project=project, query=query).matching(**filters)
            return _walk(rows, project=project, before=before or LAST_ID, limit=limit)


def _walk(rows: TrajectoryQuerySet, *, project: Project, before: str, limit: int) -> Found:
    """Look through stretches of the project's trajectories, from the newest back, until the page is full."""
    start, n_rows, n_looked_at = monotonic(), FIRST_STRETCH, 0
    items: list[Trajectory] = []
    at: str | None = before
    while at is not None and len(items) <= limit:
        floor = _find_floor(project, before=at, n_rows=n_rows)
        stretch = rows.filter(pk__lt=at, pk__gte=floor) if floor else rows.filter(pk__lt=at)
        items += stretch.order_by("-pk")[: limit + 1 - len(items)]
        at, n_looked_at = floor, n_looked_at + n_rows
        left_s = WALK_MS / 1000 - (monotonic() - start)
        if left_s <= 0:
            break
        n_rows = max(FIRST_STRETCH, int(n_looked_at * left_s / (monotonic() - start)))
    if len(items) > limit:
        return Found(items=items[:limit], next_before=items[limit - 1].pk)
    return Found(items=items, next_before=at, is_cut=at is not None)


def _find_floor(project: Project, *, before: str, n_rows: int) -> str | None:
    """Return the id of the trajectory so many places before `before`, None when there are not so many."""
    ids = Trajectory.objects.filter(project=project, pk__lt=before).order_by("-pk").values_list("pk", flat=True)
    return ids[n_rows - 1 : n_rows].first()


@contextmanager
def patience(*, limit_ms: int = PATIENCE_MS) -> Iterator[None]:
    """Ask what may be slow: the database gives up after `limit_ms`, and the caller is told what would help."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit_ms}ms"])
            yield
            cursor.execute("SELECT set_config('statement_timeout', '0', true)")  # an outer transaction goes on
    except OperationalError as error:
        if sql_state(error) != _STOPPED:
            raise
        raise TooSlow(
            f"this search takes longer than {limit_ms / 1000:g} s: narrow it, say with from:7d or agent:…", field="q"
        ) from error
