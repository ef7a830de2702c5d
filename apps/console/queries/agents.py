"""What the pages of agents and their keys show."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Avg, Count, Max, Sum
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey, Project
from apps.console.break_hints import BREAK_HINTS
from apps.core.errors import NotFound
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
    n_trajectories: int
    n_steps: int
    n_tokens: int
    mean_reward: float | None
    last_seen_at: datetime | None


def list_agents(project: Project) -> list[AgentRow]:
    """Return the project's agents by name, each with the sums of its last day."""
    return [read_agent(agent) for agent in project.agents.order_by("name")[:SHOWN]]


def read_agent(agent: Agent) -> AgentRow:
    """Return the sums over the agent's trajectories of the last day, the newest thousand at most."""
    recent = Trajectory.objects.filter(agent=agent, last_step_at__gte=timezone.now() - WINDOW).order_by("-pk")
    sums = Trajectory.objects.filter(pk__in=recent.values("pk")[:SAMPLE]).aggregate(
        n=Count("pk"),
        steps=Sum("n_steps"),
        prompt=Sum("n_prompt_tokens"),
        completion=Sum("n_completion_tokens"),
        reward=Avg("reward"),
    )
    newest = agent.keys.aggregate(at=Max("last_used_at"))["at"]
    last = Trajectory.objects.filter(agent=agent).order_by("-pk").first()
    return AgentRow(
        agent=agent,
        n_keys=ApiKey.objects.usable().filter(agent=agent).count(),
        n_trajectories=sums["n"],
        n_steps=sums["steps"] or 0,
        n_tokens=(sums["prompt"] or 0) + (sums["completion"] or 0),
        mean_reward=sums["reward"],
        last_seen_at=newest or (last.last_step_at if last else None),
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
    latest = Trajectory.objects.filter(agent=agent).order_by("-pk").values("pk")[:SAMPLE_FOR_BREAKS]
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
    return Trajectory.objects.filter(key=key).order_by("pk").first()
