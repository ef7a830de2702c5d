"""What the list of trajectories shows, and the filters that stand in its address."""

from dataclasses import dataclass

from django.db.models import QuerySet
from django.http import QueryDict

from apps.accounts.models import Agent, Project
from apps.core.errors import InvalidInput, NotFound
from apps.core.paging import Page as KeysetPage
from apps.core.paging import page_newest_first
from apps.core.texts import is_storable
from apps.trajectories.models import Channel, Trajectory, TrajectoryState

PER_PAGE = 50
REWARDED = {"yes": "rewarded", "no": "not rewarded", "good": "above 0", "bad": "below 0"}


@dataclass(frozen=True, kw_only=True)
class Filters:
    """What the address asks for; "" means all."""

    agent: str = ""
    channel: str = ""
    state: str = ""
    rewarded: str = ""
    before: str = ""

    @property
    def is_narrowed(self) -> bool:
        return bool(self.agent or self.channel or self.state or self.rewarded)


def read_filters(query: QueryDict) -> Filters:
    """Read the filters; raise InvalidInput for a value that no filter has."""
    filters = Filters(**{name: query.get(name, "").strip() for name in Filters.__dataclass_fields__})
    if not is_storable(filters.agent):
        raise InvalidInput("agent is not a filter with these characters", field="agent")
    _check("channel", filters.channel, Channel.values)
    _check("state", filters.state, TrajectoryState.values)
    _check("rewarded", filters.rewarded, list(REWARDED))
    return filters


def _check(name: str, value: str, allowed: list[str]) -> None:
    if value and value not in allowed:
        raise InvalidInput(f"{name}={value} is not a filter; use one of {', '.join(allowed)}", field=name)


def list_trajectories(project: Project, filters: Filters) -> KeysetPage[Trajectory]:
    """Return one page, newest first."""
    rows = Trajectory.objects.filter(project=project).select_related("agent")
    matching = rows.matching(agent=filters.agent, channel=filters.channel, state=filters.state)
    return page_newest_first(_by_reward(matching, filters.rewarded), before=filters.before or None, limit=PER_PAGE)


def _by_reward(rows: QuerySet[Trajectory], rewarded: str) -> QuerySet[Trajectory]:
    match rewarded:
        case "yes":
            return rows.exclude(reward=None)
        case "no":
            return rows.filter(reward=None)
        case "good":
            return rows.filter(reward__gt=0)
        case "bad":
            return rows.filter(reward__lt=0)
    return rows


def agent_choices(project: Project) -> list[Agent]:
    """Return the agents to filter by."""
    return list(project.agents.order_by("name")[:100])


def find_trajectory(project: Project, trajectory_id: str) -> Trajectory:
    """Return a trajectory of the project or raise NotFound."""
    rows = Trajectory.objects.select_related("agent", "key", "project__team")
    trajectory = rows.filter(project=project, pk=trajectory_id).first()
    if trajectory is None:
        raise NotFound("this project has no such trajectory")
    return trajectory
