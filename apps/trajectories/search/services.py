"""What REST and the console call to search. Knows no HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
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


def search(*, project: Project, q: str, before: str | None, limit: int, **filters: Any) -> Page[Trajectory]:
    """Return one page of what a search finds, newest first; `filters` are those of `TrajectoryQuerySet.matching`.

    Raises SearchError and TooSlow.
    """
    rows = find_matching(project=project, query=parse_query(q)).matching(**filters)
    with patience():
        return page_newest_first(rows, before=before, limit=limit)


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
