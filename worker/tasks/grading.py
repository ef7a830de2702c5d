"""Entry points of graders: what is due, dry runs, back-fills, and the clock's pass."""

import time

from celery import shared_task

from apps.core.contracts.tasks import FILL_BACKFILL, GRADE_TRAJECTORIES, RUN_DRY_RUN, TEND_GRADERS
from apps.core.jobs import queue_task
from apps.feedback.graders import backfilling, tending, trying
from apps.feedback.graders.running import grade_due

AT_A_STRETCH_S = 30.0  # then others of the queue have their turn


@shared_task(name=GRADE_TRAJECTORIES)
def grade_trajectories(version_id: str) -> None:
    """Grade what waits for a version; when there is much of it, go on after others had their turn."""
    started = time.monotonic()
    while grade_due(version_id):
        if time.monotonic() - started > AT_A_STRETCH_S:
            queue_task(GRADE_TRAJECTORIES, version_id)
            return


@shared_task(name=RUN_DRY_RUN)
def run_dry_run(dry_run_id: str) -> None:
    """Try a version on a sample."""
    trying.run_dry_run(dry_run_id)


@shared_task(name=FILL_BACKFILL)
def fill_backfill(backfill_id: str) -> None:
    """Line up what a back-fill is to grade; the clock queues the grading."""
    backfilling.fill_backfill(backfill_id)
    tending.tend_graders()


@shared_task(name=TEND_GRADERS)
def tend_graders() -> None:
    """Line up what was completed, and queue what is due."""
    tending.tend_graders()
