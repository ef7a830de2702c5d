"""What the home page of a project and the list of projects show."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from django.db import models

from apps.accounts.models import ApiKey, Project, Role, User
from apps.console.queries.counting import Count, count_up_to
from apps.console.queries.imports import was_captured
from apps.console.queries.models import read_shares
from apps.registry.models import Alias, AliasName, Engine, EngineState, Policy, Version, VersionState
from apps.registry.queries import find_context_length
from apps.training.models import ACTIVE_STATES, BatchState, BatchTrajectory, Run
from apps.trajectories.models import Step, Trajectory

PROJECTS_SHOWN = 50
RUNS_SHOWN = 5
TRAJECTORIES_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The five stations of the loop, counted."""

    captured: Count
    rewarded: Count
    trained: Count
    versions: Count
    served: Count
    live: Version | None
    live_since: datetime | None
    shares: dict[int, int]
    """How many of 100 calls each version answers, by its number, live's first."""


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """How far a new project has come."""

    has_agent: bool
    has_key: bool
    has_call: bool
    has_reward: bool
    has_run: bool
    has_version: bool

    @property
    def n_done(self) -> int:
        return sum((self.has_agent, self.has_key, self.has_call, self.has_reward, self.has_run, self.has_version))

    @property
    def is_done(self) -> bool:
        return self.n_done == self.n_all

    @property
    def n_all(self) -> int:
        return 6


@dataclass(frozen=True, kw_only=True)
class ProjectCard:
    """One project on the first page."""

    project: Project
    role: str
    n_trajectories: Count
    n_unrewarded: Count
    n_active_runs: int
    live: Version | None


def list_bases(user: User) -> list[Policy]:
    """Return one policy for each base model that projects of the person's own teams began with, by its name."""
    known = Policy.objects.filter(project__team__in=user.owned_teams())
    return list(known.order_by("base_model", "created_at").distinct("base_model"))


def find_policy(project: Project) -> Policy | None:
    """Return the project's policy, if it has one yet."""
    return Policy.objects.filter(project=project).first()


def context_length(project: Project) -> int | None:
    """Return how many tokens the project's engines have for request and answer, None where none has told yet."""
    policy = find_policy(project)
    return find_context_length(policy.base_model if policy else "")


def live_alias(project: Project) -> Alias | None:
    """Return the alias `live` with its version."""
    rows = Alias.objects.filter(policy__project=project, name=AliasName.LIVE)
    return rows.select_related("version__policy").first()


def read_loop(project: Project) -> Loop:
    """Count the five stations."""
    trajectories = Trajectory.objects.filter(project=project, deleted_at=None)
    trained = BatchTrajectory.objects.filter(
        batch__run__project=project, is_active=True, batch__state=BatchState.TRAINED
    )
    alias = live_alias(project)
    live = alias.version if alias else None
    return Loop(
        captured=count_up_to(trajectories),
        rewarded=count_up_to(trajectories.exclude(reward=None)),
        trained=count_up_to(trained.values("trajectory").distinct()),
        versions=count_up_to(Version.objects.filter(policy__project=project, state=VersionState.READY)),
        served=count_up_to(Step.objects.filter(was_captured("trajectory_id"), version=live)) if live else Count(n=0),
        live=live,
        live_since=alias.switched_at if alias else None,
        shares=read_shares(project),
    )


def read_set_up(project: Project) -> SetUp:
    """Say which of the first steps are done."""
    return SetUp(
        has_agent=project.agents.exists(),
        has_key=ApiKey.objects.filter(agent__project=project).exists(),
        has_call=project.trajectories.filter(was_captured(), deleted_at=None).exists(),
        has_reward=project.trajectories.filter(deleted_at=None, reward__isnull=False).exists(),
        has_run=project.runs.exists(),
        has_version=Version.objects.filter(policy__project=project, state=VersionState.READY, number__gt=0).exists(),
    )


def active_runs(project: Project) -> list[Run]:
    """Return runs that are queued or under way, newest first."""
    return list(project.runs.filter(state__in=ACTIVE_STATES).order_by("-pk")[:RUNS_SHOWN])


def last_run(project: Project) -> Run | None:
    """Return the run that was launched last, if there was one."""
    return project.runs.order_by("-pk").first()


def latest_trajectories(project: Project) -> list[Trajectory]:
    """Return the newest trajectories."""
    rows = project.trajectories.filter(deleted_at=None).select_related("agent")
    return list(rows.order_by("-pk")[:TRAJECTORIES_SHOWN])


class Voice(StrEnum):
    """Whether agents get an answer from what is live now."""

    ANSWERS = "answers"
    STARTING = "starting"  # an engine that has not answered yet
    AWAY = "away"  # one that did
    NONE = "none"


def find_voice(project: Project) -> Voice:
    """Say whether an engine answers for the project's policy, else what is known of those there are."""
    policy = find_policy(project)
    engines = Engine.objects.replicas().filter(is_enabled=True)
    if policy and engines.filter(state=EngineState.UP, base_model=policy.base_model).exists():
        return Voice.ANSWERS
    if engines.filter(last_seen_at=None).exists():
        return Voice.STARTING
    return Voice.AWAY if engines.exists() else Voice.NONE


def engines_down() -> list[Engine]:
    """Return engines that should answer and do not."""
    return list(Engine.objects.replicas().filter(is_enabled=True, state=EngineState.DOWN)[:5])


def list_projects(user: User) -> list[ProjectCard]:
    """Return the person's projects as cards."""
    projects = list(user.projects()[:PROJECTS_SHOWN])
    roles = dict(user.memberships.values_list("team_id", "role"))
    aliases = Alias.objects.filter(policy__project__in=projects, name=AliasName.LIVE).select_related("version__policy")
    live = {alias.version.policy.project_id: alias.version for alias in aliases}
    active = Run.objects.filter(project__in=projects, state__in=ACTIVE_STATES).order_by().values("project")
    n_active = dict(active.annotate(n=models.Count("pk")).values_list("project", "n"))
    return [
        _card(
            project, role=Role(roles[project.team_id]), live=live.get(project.pk), n_active=n_active.get(project.pk, 0)
        )
        for project in projects
    ]


def _card(project: Project, *, role: Role, live: Version | None, n_active: int) -> ProjectCard:
    trajectories = Trajectory.objects.filter(project=project, deleted_at=None)
    return ProjectCard(
        project=project,
        role=role.label.lower(),
        n_trajectories=count_up_to(trajectories),
        n_unrewarded=count_up_to(trajectories.filter(reward=None)),
        n_active_runs=n_active,
        live=live,
    )
