"""Entry points of jobs over many trajectories, and of what clears away after them."""

from celery import shared_task

from apps.core.contracts.tasks import RUN_BULK_JOB, TEND_BULK_JOBS
from apps.feedback.bulk import ACTIONS
from apps.trajectories.bulk import running


@shared_task(name=RUN_BULK_JOB)
def run_bulk_job(job_id: str) -> None:
    """Do the job, or go on with it, or take it back."""
    running.run_job(job_id, actions=ACTIONS)


@shared_task(name=TEND_BULK_JOBS)
def tend_bulk_jobs() -> None:
    """Queue again what lost its worker, and remove for good what was deleted long ago."""
    running.resend_jobs()
    running.purge_deleted()
