"""What the list of trajectories shows: one page of what a search finds, and a strip of time."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from apps.accounts.models import Agent, Project
from apps.console.queries.counting import Count
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import Filter, Query, Term
from apps.trajectories.search.services import Found, TooSlow, find_matching, find_page, patience

PER_PAGE = 50
STRIP_LIMIT = 1000
STRIP_MS = 100  # the strip is decoration: rather none than a page that waits
MOST_BARS = 40
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WIDTHS = (
    *(timedelta(minutes=n) for n in (1, 5, 15)),
    *(n * HOUR for n in (1, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 30, 90, 365)),
)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """So many trajectories began in this time; `q` is the search narrowed to it. x, y, width and height in percent."""

    start: datetime
    end: datetime
    n: int
    q: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, kw_only=True)
class Strip:
    """How many trajectories the search finds, and when the newest of them began."""

    count: Count
    bars: list[Bar]


def list_trajectories(project: Project, query: Query, *, before: str, hidden: Hidden) -> Found:
    """Return one page, newest first. Raises TooSlow."""
    return find_page(project=project, query=query, before=before or None, limit=PER_PAGE, hidden=hidden)


def read_strip(project: Project, query: Query, *, hidden: Hidden = NOTHING) -> Strip | None:
    """Return when the newest thousand that the search finds began; None when that would take too long."""
    try:
        with patience(limit_ms=STRIP_MS):  # rare words are looked up as the rows are named
            rows = find_matching(project=project, query=query, hidden=hidden).order_by("-pk")
            starts = list(rows.values_list("started_at", flat=True)[: STRIP_LIMIT + 1])
    except TooSlow:
        return None
    count = Count(n=min(len(starts), STRIP_LIMIT), is_more=len(starts) > STRIP_LIMIT)
    return Strip(count=count, bars=_draw_bars(starts[:STRIP_LIMIT], query))


def _draw_bars(starts: list[datetime], query: Query) -> list[Bar]:
    if not starts:
        return []
    first, last = min(starts).astimezone(UTC), max(starts).astimezone(UTC)
    width = next((width for width in WIDTHS if (last - first) / width < MOST_BARS - 1), WIDTHS[-1])
    origin = first - (first - datetime(1970, 1, 5, tzinfo=UTC)) % width  # a Monday, so that weeks begin on one
    places = [int((start - origin) / width) for start in starts]
    n_bars = max(places) + 1
    counts = [places.count(place) for place in range(n_bars)]
    tallest = max(counts)
    return [
        _draw_bar(origin + place * width, width, n, query=query, place=place, n_bars=n_bars, tallest=tallest)
        for place, n in enumerate(counts)
        if n
    ]


def _draw_bar(start: datetime, width: timedelta, n: int, *, query: Query, place: int, n_bars: int, tallest: int) -> Bar:
    end = start + width
    limits: tuple[Term, ...] = (_moment("from", start), _moment("to", end))
    height = max(100 * n / tallest, 4)
    return Bar(
        start=start,
        end=end,
        n=n,
        q=str(query.replacing("from", "to", by=limits)),
        x=round(100 * place / n_bars, 2),
        y=round(100 - height, 2),
        width=round(100 / n_bars * 0.86, 2),
        height=round(height, 2),
    )


def _moment(field: str, moment: datetime) -> Filter:
    return Filter(field=field, operator=":", values=(f"{moment:%Y-%m-%dT%H:%M}",))


def agent_choices(project: Project) -> list[Agent]:
    """Return the agents to filter by."""
    return list(project.agents.order_by("name")[:100])


def find_trajectory(project: Project, trajectory_id: str) -> Trajectory:
    """Return a trajectory of the project or raise NotFound."""
    rows = Trajectory.objects.select_related("agent", "key", "project__team").filter(project=project, deleted_at=None)
    trajectory = rows.filter(pk=trajectory_id).first() if is_id(trajectory_id, "traj") else None
    if trajectory is None:
        raise NotFound("this project has no such trajectory")
    return trajectory
