"""Turns a search into rows: each term is a condition that an index serves.

The room above owns labels; here only the name of their relation is known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from django.contrib.postgres.search import SearchQuery
from django.db.models import Exists, F, OuterRef, Q, QuerySet

from apps.accounts.models import Agent, Project
from apps.registry.models import Version
from apps.trajectories.bulk.models import TrajectoryTag
from apps.trajectories.models import PrefixBreak, Step, Trajectory
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.fields import ANY, NONE, read_count, read_end, read_moment, read_number, read_version
from apps.trajectories.search.language import Filter, Query, Words
from apps.trajectories.search.models import TrajectoryText, TrajectoryVersion
from apps.trajectories.search.words import CONFIG

Condition = Q | Exists
FEW = 2000  # rows of words that are looked up rather than met
_LOOKUPS = {":": "", "<": "__lt", "<=": "__lte", ">": "__gt", ">=": "__gte"}


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Where and when a search is asked: slugs and numbers are a project's, ages like 36h count back from `now`.

    `between`: only trajectories from the first id to the last are asked for, and they are few: so what hangs on others
    need not be read. `looked_up`: by its SQL, the trajectories that a look-up named, None where they were too many.
    """

    project: Project
    now: datetime
    between: tuple[str, str] | None = None
    looked_up: dict[str, frozenset[str] | None] = field(default_factory=dict)


def narrow_rows(rows: TrajectoryQuerySet, query: Query, *, scope: Scope) -> TrajectoryQuerySet:
    """Return those of the project's rows for which all terms hold."""
    if any(isinstance(term, Filter) and term.field == "tokens" for term in query.terms):
        rows = rows.annotate(n_tokens=F("n_prompt_tokens") + F("n_completion_tokens"))
    for term in query.terms:
        condition = _say(term.text, scope) if isinstance(term, Words) else _COMPILERS[term.field](term, scope)
        rows = rows.filter(~condition if term.is_negated else condition)
    return rows


def _any_of(term: Filter, compile_value: Callable[[str], Condition]) -> Condition:
    conditions = [compile_value(value) for value in term.values]
    if len(conditions) == 1:
        return conditions[0]
    either = Q()
    for condition in conditions:
        either |= Q(condition)
    return either


def _say(text: str, scope: Scope) -> Condition:
    """Postgres takes the text apart as it did the messages, so an address or a path finds itself.

    Rare words are looked up first: of a word that it has not counted Postgres believes that it is frequent, and would
    walk through all trajectories for it. Frequent ones are soon met on that walk.
    """
    said = TrajectoryText.objects.filter(words=SearchQuery(text, config=CONFIG, search_type="phrase"))
    return _among(said, scope)


def _among(rows: QuerySet[Any], scope: Scope) -> Condition:
    """Those that rows of a side table name: a few are looked up now, many are met on the way."""
    if scope.between is None and (found := _look_up(rows, scope)) is not None:
        return Q(pk__in=found)
    return _have(rows, scope)


def _look_up(rows: QuerySet[Any], scope: Scope) -> frozenset[str] | None:
    """Return the trajectories that the rows name, None where they are many. A page asks this twice: itself and for its
    strip."""
    name = str(rows.query)
    if name not in scope.looked_up:
        found = list(rows.order_by().values_list("trajectory_id", flat=True)[: FEW + 1])
        scope.looked_up[name] = frozenset(found) if len(found) <= FEW else None
    return scope.looked_up[name]


def _have(rows: QuerySet[Any], scope: Scope) -> Exists:
    """Those on which one of these rows of a side table hangs."""
    if scope.between is not None:
        rows = rows.filter(trajectory__gte=scope.between[0], trajectory__lte=scope.between[1])
    return Exists(rows.filter(trajectory=OuterRef("pk")))


def _compare(term: Filter, _scope: Scope, *, column: str, read: Callable[[str], Any]) -> Condition:
    name = column + _LOOKUPS[term.operator]

    def compile_value(value: str) -> Condition:
        if term.operator == ":" and value in {NONE, ANY}:
            return Q(**{f"{column}__isnull": value == NONE})
        return Q(**{name: read(value)})

    return _any_of(term, compile_value)


def _equal(term: Filter, _scope: Scope, *, column: str) -> Q:
    return Q(**{f"{column}__in": term.values})


def _has(term: Filter, scope: Scope) -> Condition:
    return _any_of(term, lambda value: _HAS[value](scope))


def _is(term: Filter, _scope: Scope) -> Condition:
    return _any_of(term, lambda value: Q(is_excluded=True) if value == "excluded" else Q(state=value))


def _by_agent(term: Filter, scope: Scope) -> Q:
    """Ids, looked up first: of them Postgres knows how frequent they are, of slugs in another table it does not."""
    return Q(
        agent__in=list(Agent.objects.filter(project=scope.project, slug__in=term.values).values_list("pk", flat=True))
    )


def _spoken_by(term: Filter, scope: Scope) -> Exists:
    numbers = _compare(term, scope, column="number", read=read_version)
    versions = Version.objects.filter(numbers, policy__project=scope.project).values_list("pk", flat=True)
    return _have(TrajectoryVersion.objects.filter(version__in=list(versions)), scope)


def _from(term: Filter, scope: Scope) -> Condition:
    return _any_of(term, lambda value: Q(started_at__gte=read_moment(value, now=scope.now)))


def _to(term: Filter, scope: Scope) -> Condition:
    return _any_of(term, lambda value: Q(started_at__lt=read_end(value, now=scope.now)))


def _tagged(term: Filter, scope: Scope) -> Exists:
    return _have(TrajectoryTag.objects.filter(name__in=term.values), scope)


def _broken(term: Filter, scope: Scope) -> Condition:
    broken = Step.objects.exclude(prefix_break=PrefixBreak.NONE)

    def compile_value(value: str) -> Condition:
        if value == NONE:
            return ~Q(_among(broken, scope))
        return _among(broken if value == ANY else broken.filter(prefix_break=value), scope)

    return _any_of(term, compile_value)


def _labelled(term: Filter, scope: Scope) -> Condition:
    labels = Trajectory._meta.get_field("labels").related_model  # noqa: SLF001 (Django's public name for it)
    standing = labels._default_manager.filter(  # noqa: SLF001
        Q(value__isnull=False) | Q(said__isnull=False), trajectory=OuterRef("pk"), superseded_by=None
    )

    def compile_value(value: str) -> Condition:
        if value == NONE:
            return ~Q(_have(standing, scope))
        return _have(standing if value == ANY else standing.filter(source=value), scope)

    return _any_of(term, compile_value)


def _graded(term: Filter, scope: Scope) -> Exists:
    labels = Trajectory._meta.get_field("labels").related_model  # noqa: SLF001 (Django's public name for it)
    standing = labels._default_manager.filter(superseded_by=None, is_undo=False)  # noqa: SLF001
    return _have(standing.filter(grader__grader__name__in=term.values, grader__grader__project=scope.project), scope)


_HAS: dict[str, Callable[[Scope], Condition]] = {
    "error": lambda _: Q(has_error=True),
    "reward": lambda _: Q(reward__isnull=False),
    "tag": lambda scope: _have(TrajectoryTag.objects.all(), scope),
    "group": lambda _: ~Q(group=""),
    "side": lambda scope: _among(Step.objects.exclude(side_call=""), scope),
    "parent": lambda _: Q(parent__isnull=False),
}
_COMPILERS: dict[str, Callable[[Filter, Scope], Condition]] = {
    "agent": _by_agent,
    "reward": partial(_compare, column="reward", read=read_number),
    "turns": partial(_compare, column="n_steps", read=read_count),
    "tokens": partial(_compare, column="n_tokens", read=read_count),
    "has": _has,
    "is": _is,
    "version": _spoken_by,
    "channel": partial(_equal, column="channel"),
    "label": _labelled,
    "grader": _graded,
    "break": _broken,
    "tag": _tagged,
    "group": partial(_equal, column="group"),
    "session": partial(_equal, column="session_key"),
    "id": partial(_equal, column="id"),
    "from": _from,
    "to": _to,
}
