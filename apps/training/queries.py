"""What is read of runs, and by whom."""

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.errors import NotFound
from apps.core.ids import is_id
from apps.core.paging import Page, page_newest_first
from apps.training.models import Batch, Metric, Run, RunEvent

POINTS = 2000  # of a curve in one answer


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


def list_metrics(run: Run, *, since_step: int) -> list[Metric]:
    """Return the points after `since_step`, in order; a step has one point for the attempt that finished it."""
    return list(run.metrics.filter(step__gt=since_step).select_related("attempt").order_by("step", "id")[:POINTS])


def list_events(run: Run, *, after: int, limit: int) -> list[RunEvent]:
    """Return the run's history after event `after`, oldest first."""
    return list(run.events.filter(id__gt=after).order_by("id")[:limit])


def list_batches(run: Run, *, after_step: int, limit: int) -> list[Batch]:
    """Return what the run has leased, trained, skipped or given back, in order of steps."""
    return list(run.batches.filter(step__gt=after_step).order_by("step", "id")[:limit])
