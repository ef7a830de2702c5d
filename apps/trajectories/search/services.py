"""What REST and the console call to search. Knows no HTTP."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from time import monotonic
from typing import Any

from django.db import OperationalError, connection, transaction
from django.db.models import Value
from django.db.models.functions import Concat
from django.utils import timezone

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.core.paging import Page, page_newest_first
from apps.registry.models import Version
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Trajectory
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.compiling import Scope, narrow_rows
from apps.trajectories.search.fields import ANY, NONE, read_version
from apps.trajectories.search.language import Filter, Query, parse_query
from apps.trajectories.sql_states import is_out_of_time

PATIENCE_MS = 8_000
DIRECT_MS = 90  # then an index does not serve the search
WALK_MS = 100
FIRST_STRETCH = 1000  # trajectories
# Postgres does not know that ids sort by time: for what lies before an end it would walk past all that is younger. This
# has it find those by the index on their beginning, and sort then.
BY_NO_INDEX = Concat("pk", Value("")).desc()


class TooSlow(InvalidInput):
    """A search that no index narrows enough."""

    status = 422
    code = "search_too_slow"


def find_matching(
    *,
    project: Project,
    query: Query,
    now: datetime | None = None,
    between: tuple[str, str] | None = None,
    hidden: Hidden = NOTHING,
) -> TrajectoryQuerySet:
    """Return the project's trajectories for which the search holds, in no order; with `between` those with ids from the
    first to the last, which should be few. A search for rewards or labels finds none of `hidden`."""
    rows = Trajectory.objects.of_project(project)
    if hidden and query.asks_for_judgements:
        rows = rows.exclude(pk__in=hidden)
    if between is not None:
        rows = rows.filter(pk__gte=between[0], pk__lte=between[1])
    scope = Scope(project=project, now=now or timezone.now(), between=between, looked_up=query.looked_up)
    return narrow_rows(rows, query, scope=scope)


@dataclass(frozen=True, kw_only=True)
class Found(Page[Trajectory]):
    """One page of a search. `is_walked`: no index served it. `is_cut`: it was ended early, and goes on from
    `next_before`; there may be more until then than the page has. `warning`: what in the search may be a slip."""

    is_walked: bool = False
    is_cut: bool = False
    warning: str = ""


def search(
    *, project: Project, q: str, before: str | None, limit: int, hidden: Hidden = NOTHING, **filters: Any
) -> Found:
    """Return one page of what a search finds, newest first; `filters` are those of `name_terms`.

    Raises SearchError and TooSlow.
    """
    query = Query(terms=(*parse_query(q).terms, *name_terms(**filters)))
    found = find_page(project=project, query=query, before=before, limit=limit, hidden=hidden)
    return replace(found, warning=_tell_strangers(project, query))


def name_terms(
    *,
    agent: str = "",
    channel: str = "",
    state: str = "",
    group: str = "",
    has_reward: bool | None = None,
    is_excluded: bool | None = None,
    prefix_break: str = "",
) -> list[Filter]:
    """Return the terms that say the same as these filters; "" and None ask for nothing."""
    named = {"agent": agent, "channel": channel, "is": state, "group": group, "break": prefix_break}
    terms = [Filter(field=name, operator=":", values=(value,)) for name, value in named.items() if value]
    if has_reward is not None:
        terms.append(Filter(field="reward", operator=":", values=(ANY if has_reward else NONE,)))
    if is_excluded is not None:
        terms.append(Filter(field="is", operator=":", values=("excluded",), is_negated=not is_excluded))
    return terms


@dataclass(frozen=True, kw_only=True)
class Stranger:
    """An agent or a version that a search names and the project has not. `meant`: the one that may be meant, or ""."""

    kind: str
    name: str
    meant: str = ""

    def __str__(self) -> str:
        hint = f": do you mean {self.meant}?" if self.meant else ""
        return f"this project has no {self.kind} {self.name}{hint}"


def find_strangers(*, project: Project, query: Query) -> list[Stranger]:
    """Return the agents and versions that the search names and the project has not."""
    return _find_strange_agents(project, _list_named(query, "agent")) + _find_strange_versions(
        project, _list_named(query, "version")
    )


def _list_named(query: Query, field: str) -> set[str]:
    named = [term for term in query.terms if isinstance(term, Filter) and (term.field, term.operator) == (field, ":")]
    return {value for term in named for value in term.values}


def _find_strange_agents(project: Project, named: set[str]) -> list[Stranger]:
    known = dict(project.agents.values_list("slug", "name")) if named else {}
    slugs = {name.lower(): slug for slug, name in known.items()} | {slug: slug for slug in known}
    near = {value: get_close_matches(value.lower(), slugs, n=1) for value in sorted(named - known.keys())}
    return [Stranger(kind="agent", name=value, meant=slugs[found[0]] if found else "") for value, found in near.items()]


def _find_strange_versions(project: Project, named: set[str]) -> list[Stranger]:
    numbers = {value: read_version(value) for value in named}
    rows = Version.objects.filter(policy__project=project, number__in=set(numbers.values()))
    known = set(rows.values_list("number", flat=True)) if named else set()
    return [Stranger(kind="version", name=value) for value in sorted(named) if numbers[value] not in known]


def warn_of_strangers(*, project: Project, query: str) -> str:
    """Return the same in words, "" when the project has all that the search names. Raises SearchError."""
    return _tell_strangers(project, parse_query(query))


def _tell_strangers(project: Project, query: Query) -> str:
    return "; ".join(map(str, find_strangers(project=project, query=query)))


def find_page(*, project: Project, query: Query, before: str | None, limit: int, hidden: Hidden = NOTHING) -> Found:
    """Return one page, newest first. What no index narrows is looked for among the newest, as far as time allows.

    Raises TooSlow when even a little of that takes too long.
    """

    def find(between: tuple[str, str] | None = None) -> TrajectoryQuerySet:
        return find_matching(project=project, query=query, between=between, hidden=hidden)

    has_end = any(isinstance(term, Filter) and term.field == "to" for term in query.terms)
    for order in (*((BY_NO_INDEX,) if has_end else ()), "-pk"):
        with suppress(TooSlow), patience(limit_ms=DIRECT_MS):
            page = page_newest_first(find(), before=before, limit=limit, order=order)
            return Found(items=page.items, next_before=page.next_before)
    with patience():
        return _walk(find, project=project, before=before, limit=limit)


def _walk(find: Callable[..., TrajectoryQuerySet], *, project: Project, before: str | None, limit: int) -> Found:
    """Look through stretches of the project's trajectories, from the newest back, until the page is full."""
    _probe_by_index()
    start, n_rows, n_looked_at = monotonic(), FIRST_STRETCH, 0
    items: list[Trajectory] = []
    stretch = _find_stretch(project, before=before, n_rows=n_rows)
    while stretch is not None and len(items) <= limit:
        items += find(stretch).order_by("-pk")[: limit + 1 - len(items)]
        before, n_looked_at = stretch[0], n_looked_at + n_rows
        passed_s = monotonic() - start
        if passed_s > WALK_MS / 1000:
            break
        n_rows = max(FIRST_STRETCH, int(n_looked_at * (WALK_MS / 1000 - passed_s) / passed_s))
        stretch = _find_stretch(project, before=before, n_rows=n_rows)
    if len(items) > limit:
        return Found(items=items[:limit], next_before=items[limit - 1].pk, is_walked=True)
    is_cut = stretch is not None
    return Found(items=items, next_before=before if is_cut else None, is_walked=True, is_cut=is_cut)


def _find_stretch(project: Project, *, before: str | None, n_rows: int) -> tuple[str, str] | None:
    """Return the ids between which the next so many trajectories of the project lie, None when there are no more."""
    ids = Trajectory.objects.filter(project=project).order_by("-pk").values_list("pk", flat=True)
    if before is not None:
        ids = ids.filter(pk__lt=before)
    newest = ids.first()
    oldest = ids[n_rows - 1 : n_rows].first() or ids.reverse().first()
    return (oldest, newest) if oldest and newest else None


def _probe_by_index() -> None:
    """Have Postgres, in this transaction, look up what hangs on each trajectory of a stretch, which is short: it thinks
    little of reading a whole table of words."""
    with connection.cursor() as cursor:
        for name in ("enable_hashjoin", "enable_mergejoin", "enable_seqscan"):
            cursor.execute("SELECT set_config(%s, 'off', true)", [name])


@contextmanager
def patience(*, limit_ms: int = PATIENCE_MS) -> Iterator[None]:
    """Ask what may be slow: the database gives up after `limit_ms`, and the caller is told what would help."""
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, true)", [f"{limit_ms}ms"])
            yield
            cursor.execute("SELECT set_config('statement_timeout', '0', true)")  # an outer transaction goes on
    except OperationalError as error:
        if not is_out_of_time(error):
            raise
        raise TooSlow(
            f"this search takes longer than {limit_ms / 1000:g} s: narrow it, say with from:7d or agent:…", field="q"
        ) from error
