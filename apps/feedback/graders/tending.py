"""What the clock does for graders: lines up what was completed, takes up what was lost, and queues what is due."""

from datetime import timedelta

import structlog
from django.utils import timezone

from apps.core.contracts.tasks import FILL_BACKFILL, GRADE_TRAJECTORIES, RUN_DRY_RUN
from apps.core.errors import ServiceError
from apps.core.jobs import queue_task
from apps.feedback.graders.alive import LOST_AFTER
from apps.feedback.graders.backfilling import end_backfills
from apps.feedback.graders.models import Backfill, DryRun, Grading, GradingState, WorkState
from apps.feedback.graders.running import line_up_finished, list_switched_on, release_old_claims

log = structlog.get_logger(__name__)

SILENT = timedelta(seconds=60)


def tend_graders() -> None:
    """One pass. A version that a worker is at gets no second message: it goes on by itself."""
    for grader in list_switched_on():
        try:
            line_up_finished(grader)
        except ServiceError as error:  # too slow a search, or one that is understood no more: the other graders go on
            log.warning("grader.not_lined_up", grader=grader.pk, error=error.message)
    release_old_claims()
    now = timezone.now()
    busy = Grading.objects.filter(state=GradingState.RUNNING).values("version")
    due = Grading.objects.filter(state=GradingState.WAITING, due_at__lte=now).exclude(version__in=busy)
    for version_id in due.order_by().values_list("version_id", flat=True).distinct()[:100]:
        queue_task(GRADE_TRAJECTORIES, version_id)
    end_backfills()
    resend_lost()


def resend_lost() -> None:
    """Queue again the dry runs and back-fills whose message or worker was lost."""
    now = timezone.now()
    silent = Backfill.objects.filter(
        state__in=[WorkState.QUEUED, WorkState.RUNNING], is_lined_up=False, touched_at__lt=now - SILENT
    )
    for backfill_id in list(silent.values_list("pk", flat=True)[:100]):
        if silent.filter(pk=backfill_id).update(touched_at=now) == 1:
            queue_task(FILL_BACKFILL, backfill_id)
    lost = DryRun.objects.filter(state__in=[WorkState.QUEUED, WorkState.RUNNING], touched_at__lt=now - LOST_AFTER)
    for dry_run_id in list(lost.values_list("pk", flat=True)[:100]):
        if lost.filter(pk=dry_run_id).update(state=WorkState.QUEUED, touched_at=now) == 1:
            queue_task(RUN_DRY_RUN, dry_run_id)
