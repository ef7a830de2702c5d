"""Entry points that clean up behind others: idle sessions, runs whose worker is gone, old versions' files, months."""

import socket
from datetime import timedelta

import structlog
from celery import shared_task
from django.conf import settings
from django.utils import timezone

from apps.core.contracts.tasks import CLOSE_IDLE_TRAJECTORIES, KEEP_MONTHS, REMOVE_VERSION_FILES, RESCUE_RUNS
from apps.core.errors import Conflict
from apps.registry.queries import list_removable_files
from apps.registry.services import give_up_files
from apps.training import attempts, retention
from apps.trajectories import months
from apps.trajectories.retention import drop_old_calls
from apps.trajectories.services import close_idle_trajectories as close_idle
from worker.tasks.run_folder import remove_version_folder, run_folder
from worker.tasks.trainer_process import kill_orphan

log = structlog.get_logger(__name__)

SILENT_S = 45.0  # a large batch takes a while to read
RESEND_S = 120.0
GIVEN_UP_S = 120.0  # longer than it takes to load a version that was not given up yet when that began


@shared_task(name=CLOSE_IDLE_TRAJECTORIES)
def close_idle_trajectories() -> None:
    """Complete the trajectories in which nothing has happened for a while."""
    close_idle(idle_s=settings.CLAW.idle_close_s)


@shared_task(name=RESCUE_RUNS)
def rescue_runs() -> None:
    """Take runs from workers that died, queue them again, and send again the messages that a broker may have lost."""
    host = socket.gethostname()
    for attempt in attempts.list_silent_attempts(before=timezone.now() - timedelta(seconds=SILENT_S)):
        if not attempts.mark_lost(attempt):
            continue
        log.warning("attempt.lost", run=attempt.run_id, attempt=attempt.number, host=attempt.host)
        # On another host the trainer notices by itself that its parent is gone.
        if attempt.host == host and attempt.process_group is not None:
            kill_orphan(attempt.process_group, run_dir=run_folder(attempt.run_id).path)
    attempts.requeue_orphans()
    attempts.resend_queued_runs(after_s=RESEND_S)


@shared_task(name=REMOVE_VERSION_FILES)
def remove_version_files() -> None:
    """Give up the files of versions that their runs do not keep, and remove those that were given up a while ago."""
    for batch in retention.list_outdated():
        if batch.version is None:
            run_folder(batch.run_id).drop_step(batch.step)
        elif give_up_files(batch.version):
            log.info("version.given_up", version=batch.version_id, run=batch.run_id, step=batch.step)
    for version in list_removable_files(before=timezone.now() - timedelta(seconds=GIVEN_UP_S)):
        remove_version_folder(version.adapter_path)


@shared_task(name=KEEP_MONTHS)
def keep_months() -> None:
    """Make the pool's months ahead, let go of old ones if that is set, and say what belongs to none."""
    months.make_months()
    if keep := settings.CLAW.keep_calls_months:
        try:
            drop_old_calls(keep=keep)
        except Conflict as error:  # in use, or not folded yet: in an hour again
            log.warning("months.kept", why=error.message)
    months.analyze_tables()
    for table, n in months.count_astray().items():
        log.error("months.astray", table=table, n=n, hint="a clock is months off: see `manage.py months`")
