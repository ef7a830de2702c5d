"""What the pages of agents and their keys show."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, Count, F, Max, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import JSONObject
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey, Project, Scope
from apps.console.break_hints import BREAK_HINTS
from apps.console.queries.imports import was_captured
from apps.core.errors import NotFound
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import PrefixBreak, Step, Trajectory

SHOWN = 100
WINDOW = timedelta(hours=24)
SAMPLE = 1000
SAMPLE_FOR_BREAKS = 200


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    """One agent with its last day."""

    agent: Agent
    n_keys: int
    n_script_keys: int  # that may more than an agent needs
    n_trajectories: int
    n_imported: int  # of them: nobody called for these
    n_steps: int
    n_tokens: int
    mean_reward: float | None
    last_seen_at: datetime | None


def list_agents(project: Project, *, hidden: Hidden = NOTHING) -> list[AgentRow]:
    """Return the project's agents by name, each with the sums of its last day; no mean is over rewards of `hidden`."""
    return [_row(agent) for agent in _with_day(project.agents.order_by("name"), hidden=hidden)[:SHOWN]]


def read_agent(agent: Agent, *, hidden: Hidden = NOTHING) -> AgentRow:
    """Return the sums over the agent's trajectories of the last day, the newest thousand at most."""
    return _row(_with_day(Agent.objects.filter(pk=agent.pk), hidden=hidden).get())


def _with_day(agents: QuerySet[Agent], *, hidden: Hidden) -> QuerySet[Agent]:
    """Have Postgres find all that a row shows, for every agent at once."""
    own = Trajectory.objects.filter(deleted_at=None, agent=OuterRef(OuterRef("pk"))).order_by("-pk").values("pk")
    called = Trajectory.objects.filter(was_captured(), pk__in=own[:SAMPLE]).order_by("-pk")
    day = Trajectory.objects.filter(
        deleted_at=None, agent=OuterRef(OuterRef("pk")), last_step_at__gte=timezone.now() - WINDOW
    )
    sums = JSONObject(
        n=Count("pk"),
        imported=Count("pk", filter=~was_captured()),
        steps=Sum("n_steps"),
        tokens=Sum(F("n_prompt_tokens") + F("n_completion_tokens")),
        reward=Avg("reward", filter=~Q(pk__in=hidden)),
    )
    newest = Trajectory.objects.filter(pk__in=day.order_by("-pk").values("pk")[:SAMPLE])
    keys = ApiKey.objects.filter(agent=OuterRef("pk")).order_by().values("agent")
    usable = ApiKey.objects.usable()
    return agents.annotate(
        day=Subquery(newest.order_by().values("agent").annotate(sums=sums).values("sums")),
        n_keys=_count_own(usable.filter(scope=Scope.AGENT)),
        n_script_keys=_count_own(usable.exclude(scope=Scope.AGENT)),
        used_at=Subquery(keys.annotate(at=Max("last_used_at")).values("at")),
        stepped_at=Subquery(called.values("last_step_at")[:1]),
    )


def _count_own(keys: QuerySet[ApiKey]) -> Subquery:
    """Count those of each agent."""
    own = keys.filter(agent=OuterRef("pk")).order_by().values("agent")
    return Subquery(own.annotate(n=Count("pk")).values("n"))


def _row(agent: Any) -> AgentRow:
    day = agent.day or {}
    return AgentRow(
        agent=agent,
        n_keys=agent.n_keys or 0,
        n_script_keys=agent.n_script_keys or 0,
        n_trajectories=day.get("n", 0),
        n_imported=day.get("imported", 0),
        n_steps=day.get("steps") or 0,
        n_tokens=day.get("tokens") or 0,
        mean_reward=day.get("reward"),
        last_seen_at=agent.used_at or agent.stepped_at,
    )


@dataclass(frozen=True, kw_only=True)
class BreakRow:
    """How many steps of the agent's latest trajectories do not go on where their parent ended, for one cause."""

    cause: PrefixBreak
    hint: str
    n_steps: int
    percent: int


def read_breaks(agent: Agent) -> list[BreakRow]:
    """Return the causes of broken prefixes in the agent's two hundred latest trajectories, the commonest first."""
    own = Trajectory.objects.filter(agent=agent, deleted_at=None)
    latest = own.order_by("-pk").values("pk")[:SAMPLE_FOR_BREAKS]
    rows = Step.objects.filter(trajectory_id__in=latest, parent__isnull=False).order_by().values("prefix_break")
    counts = dict(rows.annotate(n=Count("pk")).values_list("prefix_break", "n"))
    n_all = sum(counts.values())
    found = [
        BreakRow(cause=cause, hint=hint, n_steps=counts[cause], percent=round(100 * counts[cause] / n_all))
        for cause, hint in BREAK_HINTS.items()
        if cause in counts
    ]
    return sorted(found, key=lambda row: -row.n_steps)


def find_agent(project: Project, slug: str) -> Agent:
    """Return an agent of the project or raise NotFound."""
    agent = Agent.objects.filter(project=project, slug=slug).first()
    if agent is None:
        raise NotFound("this project has no such agent")
    return agent


def list_keys(agent: Agent) -> list[ApiKey]:
    """Return the agent's keys, newest first; those switched off come last."""
    keys = list(ApiKey.objects.filter(agent=agent).select_related("created_by").order_by("-pk")[:SHOWN])
    return sorted(keys, key=lambda key: key.disabled_at is not None)


def find_key(agent: Agent, key_id: str) -> ApiKey:
    """Return a key of the agent or raise NotFound."""
    key = ApiKey.objects.select_related("agent__project__team").filter(agent=agent, pk=key_id).first()
    if key is None:
        raise NotFound("this agent has no such key")
    return key


def first_trajectory_of(key: ApiKey) -> Trajectory | None:
    """Return what a key's first call became, None while nothing has come."""
    return Trajectory.objects.filter(key=key, deleted_at=None).order_by("pk").first()
