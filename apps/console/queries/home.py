"""What the home page of a project and the list of projects show."""

from dataclasses import dataclass
from datetime import datetime

from apps.accounts.models import ApiKey, Project, User
from apps.console.queries.counting import Count, count_up_to
from apps.registry.models import Alias, AliasName, Engine, EngineState, Policy, Version, VersionState
from apps.registry.queries import find_context_length
from apps.training.models import ACTIVE_STATES, BatchState, BatchTrajectory, Run
from apps.trajectories.models import Step, Trajectory

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


def find_policy(project: Project) -> Policy | None:
    """Return the project's policy, if it has one yet."""
    return Policy.objects.filter(project=project).first()


def model_name(project: Project) -> str:
    """Return the model name for snippets."""
    policy = find_policy(project)
    return policy.slug if policy else "default"


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
    trajectories = Trajectory.objects.filter(project=project)
    trained = BatchTrajectory.objects.filter(
        batch__run__project=project, is_active=True, batch__state=BatchState.TRAINED
    )
    alias = live_alias(project)
    live = alias.version if alias else None
    return Loop(
        captured=count_up_to(trajectories),
        rewarded=count_up_to(trajectories.exclude(reward=None)),
        trained=count_up_to(trained),
        versions=count_up_to(Version.objects.filter(policy__project=project, state=VersionState.READY)),
        served=count_up_to(Step.objects.filter(version=live)) if live else Count(n=0),
        live=live,
        live_since=alias.switched_at if alias else None,
    )


def read_set_up(project: Project) -> SetUp:
    """Say which of the first steps are done."""
    return SetUp(
        has_agent=project.agents.exists(),
        has_key=ApiKey.objects.filter(agent__project=project).exists(),
        has_call=project.trajectories.exists(),
        has_reward=project.trajectories.exclude(reward=None).exists(),
        has_run=project.runs.exists(),
        has_version=Version.objects.filter(policy__project=project, state=VersionState.READY, number__gt=0).exists(),
    )


def active_runs(project: Project) -> list[Run]:
    """Return runs that are queued or under way, newest first."""
    return list(project.runs.filter(state__in=ACTIVE_STATES).order_by("-pk")[:RUNS_SHOWN])


def latest_trajectories(project: Project) -> list[Trajectory]:
    """Return the newest trajectories."""
    return list(project.trajectories.select_related("agent").order_by("-pk")[:TRAJECTORIES_SHOWN])


def engines_down() -> list[Engine]:
    """Return engines that should answer and do not."""
    return list(Engine.objects.replicas().filter(is_enabled=True, state=EngineState.DOWN)[:5])


def list_projects(user: User) -> list[ProjectCard]:
    """Return the person's projects as cards."""
    return [_card(user, project) for project in user.projects()[:50]]


def _card(user: User, project: Project) -> ProjectCard:
    role = user.role_in(project)
    alias = live_alias(project)
    return ProjectCard(
        project=project,
        role=role.label.lower() if role else "",
        n_trajectories=count_up_to(Trajectory.objects.filter(project=project)),
        n_unrewarded=count_up_to(Trajectory.objects.filter(project=project, reward=None)),
        n_active_runs=project.runs.filter(state__in=ACTIVE_STATES).count(),
        live=alias.version if alias else None,
    )
