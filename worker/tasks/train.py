"""Entry point of the queue `train`: one attempt at a run, from claim to close."""

import socket

import structlog
from celery import shared_task
from django.conf import settings

from apps.core.contracts.tasks import TRAIN_RUN
from apps.training import attempts, leases
from apps.training.fence import AttemptLost
from apps.training.jobs import build_job
from apps.training.models import Attempt, RunState
from apps.training.recipes import read_recipe
from apps.training.token_samples import sample_token_texts
from worker.engine.launch import detect_device
from worker.tasks.hardware import report_this_host
from worker.tasks.run_folder import list_repeatable, run_folder
from worker.tasks.supervision import EventReader, Limits, Supervision
from worker.tasks.trainer_process import TrainerProcess

log = structlog.get_logger(__name__)


@shared_task(name=TRAIN_RUN)
def train_run(run_id: str) -> None:
    """Train the run until it is done, cancelled, failed or this worker stops. A second message changes nothing."""
    attempt = attempts.claim_attempt(run_id, host=socket.gethostname())
    if attempt is None:
        return
    structlog.contextvars.bind_contextvars(run=run_id, attempt=attempt.number)
    report_this_host()
    try:
        run_attempt(attempt)
    except AttemptLost as error:
        log.warning("attempt.taken_over", reason=str(error))
    except Exception as error:  # the process's edge: whatever happens, the run must say so
        log.exception("attempt.failed")
        attempts.end_attempt(attempt, run_state=RunState.FAILED, error=f"the train task failed: {error}")
    finally:
        structlog.contextvars.clear_contextvars()


def run_attempt(attempt: Attempt, *, limits: Limits | None = None) -> None:
    """Start the trainer where the run stands, and supervise it. Raises TrainerMissing and AttemptLost."""
    run = attempt.run
    recipe = read_recipe(run.recipe)
    folder = run_folder(run.id)
    job = build_job(
        run,
        device=detect_device(),
        engine_dtype=settings.CLAW.engine_dtype,
        token_texts=sample_token_texts(run.policy),
    )
    repeatable = list_repeatable(run.steps_done, keep_checkpoints=recipe.keep_checkpoints)
    folder.prepare(job, keep_batches=[*repeatable, *leases.list_leased_steps(run)])
    events = EventReader(attempt, folder.events())
    events.catch_up()
    if events.steps_done >= recipe.n_steps:
        folder.drop_checkpoints()
        attempts.end_attempt(attempt, run_state=RunState.SUCCEEDED)
        return
    process = TrainerProcess.start(
        folder.path,
        log_path=folder.log_path,
        python=settings.CLAW.ml_python,
        n_processes=recipe.n_processes,
        hostfile=settings.CLAW.train_hostfile,
        n_hosts=recipe.n_hosts,
    )
    try:
        attempts.set_process_group(attempt, process.process_group)
        Supervision(
            attempt, folder=folder, process=process, events=events, recipe=recipe, limits=limits or Limits()
        ).supervise()
    finally:
        process.kill()
