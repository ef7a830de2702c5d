"""What is read of runs, and by whom. Mean rewards of steps that were trained on what is `hidden` from who asks
(`blindness`) are left out: the batch's other rewards would tell it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Q

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.core.paging import Page, page_newest_first
from apps.training.models import Batch, BatchTrajectory, Metric, Run, RunEvent
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.datasets.models import Snapshot
from apps.trajectories.datasets.queries import list_latest

POINTS = 2000  # of a curve in one answer
RUNS = 6  # that are named of a snapshot
MEAN = "reward_mean"


def find_run(run_id: str, *, caller: Caller) -> Run:
    """Return a run that the caller may see. Raises NotFound: another team's looks like a missing one."""
    rows = Run.objects.select_related("project__team", "policy", "start_version")
    run = rows.filter(pk=run_id).first() if is_id(run_id, "run") else None
    if run is None or caller.role_in(run.project) is None:
        raise NotFound("no such run")
    return run


def list_runs(project: Project, *, before: str | None, limit: int) -> Page[Run]:
    """Return one page of the project's runs, newest first."""
    return page_newest_first(Run.objects.filter(project=project), before=before, limit=limit)


def list_metrics(run: Run, *, since_step: int, hidden: Hidden = NOTHING) -> list[Metric]:
    """Return the points after `since_step`, in order; a step has one point for the attempt that finished it."""
    rows = run.metrics.filter(step__gt=since_step).select_related("attempt").order_by("step", "id")
    points, kept_back = list(rows[:POINTS]), find_hidden_steps(run, hidden=hidden)
    for point in points:
        if point.step in kept_back:
            point.values.pop(MEAN, None)
    return points


def list_events(run: Run, *, after: int, limit: int) -> list[RunEvent]:
    """Return the run's history after event `after`, oldest first."""
    return list(run.events.filter(id__gt=after).order_by("id")[:limit])


def list_batches(run: Run, *, after_step: int, limit: int, hidden: Hidden = NOTHING) -> list[Batch]:
    """Return what the run has leased, trained, skipped or given back, in order of steps."""
    batches = list(run.batches.filter(step__gt=after_step).order_by("step", "id")[:limit])
    hide_means(batches, steps=find_hidden_steps(run, hidden=hidden))
    return batches


def find_hidden_steps(run: Run, *, hidden: Hidden) -> set[int]:
    """Return the steps of the run whose batches have held any of these trajectories."""
    if not hidden:
        return set()
    entries = BatchTrajectory.objects.filter(batch__run=run, trajectory__in=hidden)
    return set(entries.values_list("batch__step", flat=True))


def hide_means(batches: Sequence[Batch], *, steps: set[int]) -> None:
    """Have the batches of these steps say no mean reward."""
    for batch in batches:
        if batch.step in steps:
            batch.reward_mean = None


@dataclass(frozen=True, kw_only=True)
class Uses:
    """What has become of a snapshot's latest trajectories: the newest runs that took some, and how many are used up,
    which were trained on by their rewards or hints."""

    runs: list[Run]
    n_used_up: int


def read_uses(snapshot: Snapshot) -> Uses:
    """Return which runs have trained on what the snapshot holds, through whatever selection."""
    rows = BatchTrajectory.objects.filter(trajectory__in=list_latest(snapshot).values("trajectory_id"), is_active=True)
    counted = rows.order_by().values("batch__run").annotate(n=Count("pk", filter=Q(use="")))
    counts = dict(counted.values_list("batch__run", "n"))
    return Uses(runs=list(Run.objects.filter(pk__in=counts).order_by("-pk")[:RUNS]), n_used_up=sum(counts.values()))
