"""The terms under which a key calls: limits of it, its project and its team, and what is kept of its agent's calls.

Read with the snapshot of routes; only rows that say something are read. Knows no HTTP and no Redis.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet

from apps.accounts.limited import LIMIT_NAMES
from apps.accounts.models import Agent, ApiKey, CaptureMode, Project, Team
from apps.gateway.capture_policy import CapturePolicy, make_policy

_HAS_LIMITS = ~Q(**dict.fromkeys(LIMIT_NAMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeLimits:
    """The limits of one key, project or team; None for none."""

    kind: str  # "key", "project" or "team": for words
    id: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_in_flight: int | None = None
    tokens_per_day: int | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """All limits and policies, by id."""

    limits: Mapping[str, ScopeLimits] = field(default_factory=dict)
    capture: Mapping[str, CapturePolicy] = field(default_factory=dict)  # of agents whose calls are not kept as they are

    def limits_of(self, *ids: str) -> tuple[ScopeLimits, ...]:
        """Return the limits that these things have."""
        return tuple(self.limits[id_] for id_ in ids if id_ in self.limits)


def load_terms() -> Terms:
    """Read them through the ORM."""
    limits = {
        scope.id: scope
        for kind, rows in (
            ("key", ApiKey.objects.all()),
            ("project", Project.objects.all()),
            ("team", Team.objects.all()),
        )
        for scope in _read_limits(kind, rows)
    }
    agents = Agent.objects.exclude(capture=CaptureMode.ON).values_list("id", "capture", "patterns", "own_patterns")
    capture = {id_: make_policy(mode, patterns=patterns, own=own) for id_, mode, patterns, own in agents}
    return Terms(limits, capture)


def _read_limits(kind: str, rows: QuerySet[Any]) -> list[ScopeLimits]:
    return [ScopeLimits(kind=kind, **row) for row in rows.filter(_HAS_LIMITS).values("id", *LIMIT_NAMES)]
