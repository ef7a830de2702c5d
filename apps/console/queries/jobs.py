"""What jobs over many trajectories are called: an action's sentence, its rows and its settings in words."""

from collections.abc import Sequence

from apps.accounts.models import Project
from apps.core.counted import count_of
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.models import Grader
from apps.feedback.queues.models import ReviewQueue
from apps.trajectories.bulk.actions import Action
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.search.language import MAX_LENGTH, Filter, Query


def name_jobs(project: Project, jobs: Sequence[BulkJob]) -> list[tuple[BulkJob, Action, str]]:
    """Return each job with its action and what it does as a sentence; datasets and queues by name, by id once gone."""
    settings = [job.settings for job in jobs]
    wanted = [str(one.get(kind, "")) for one in settings for kind in ("dataset", "queue", "grader")]
    datasets = Dataset.objects.filter(project=project, pk__in=wanted)
    queues = ReviewQueue.objects.filter(project=project, pk__in=wanted)
    graders = Grader.objects.filter(project=project, pk__in=wanted)
    known = dict(pair for rows in (datasets, queues, graders) for pair in rows.values_list("pk", "name"))
    return [(job, ACTIONS[job.action], _name_job(job, known)) for job in jobs]


def _name_job(job: BulkJob, known: dict[str, str]) -> str:
    told = {key: known.get(value, value) if isinstance(value, str) else value for key, value in job.settings.items()}
    return ACTIONS[job.action].does.format(rows=_name_rows(job), **told)


def _name_rows(job: BulkJob) -> str:
    n = len(job.ids)
    if not n:
        return "all trajectories that a search finds" if job.query else "all trajectories"
    return count_of(n, "chosen trajectory", "chosen trajectories")


def search_of(job: BulkJob) -> str:
    """Return the search that finds the job's rows, "" for all, or where they are too many to name."""
    if not job.ids:
        return job.query
    named = str(Query(terms=(Filter(field="id", operator=":", values=tuple(job.ids)),)))
    return named if len(named) <= MAX_LENGTH else ""
