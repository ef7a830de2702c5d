"""The training loop, top to bottom: wait for a batch, train on it, keep what came out, tell it, again.

After a step the order is adapter, checkpoint, event. A crash before the checkpoint repeats the step from the one before
(same batch, same result); a crash between checkpoint and event makes the next start tell the event that the checkpoint
holds. Where damage sends a run back further, the steps it repeats were told and served already: their adapters and
events stay as they are. Knows nothing of rewards or of who serves the result.
"""

import time
from pathlib import Path
from typing import Any

import torch

from apps.core.contracts.codec import ContractError, decode
from apps.core.contracts.training import CHECKPOINTS_DIR, AdapterFiles, TrainBatch, TrainJob, batch_file
from worker.trainer.adapters import save_adapter
from worker.trainer.algorithms import find_algorithm
from worker.trainer.checkpoints import (
    Checkpoint,
    Retention,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
    step_of,
)
from worker.trainer.errors import BatchError
from worker.trainer.events import EventLog, make_event
from worker.trainer.model import Policy, build_engine, max_length, vocab_size
from worker.trainer.probe import answer_probe
from worker.trainer.ranks import Ranks
from worker.trainer.rendering import Renderer
from worker.trainer.whole_weights import save_weights

POLL_S = 0.25


def run_job(job: TrainJob, *, run_dir: Path, log: EventLog, ranks: Ranks) -> None:
    """Train to `job.n_steps`, from the newest checkpoint if there is one. Raises StopRequested or TrainerError."""
    algorithm, renderer = find_algorithm(job), Renderer(job.base_model_dir)
    renderer.check_tokenizer(job.token_texts)
    policy = algorithm.load(job)
    policy.register_forward_pre_hook(lambda *_: ranks.beat())
    engine = build_engine(policy, job)
    retention = Retention(n_last=job.keep_checkpoints, best=job.keep_best)
    step = resume(engine, run_dir=run_dir, log=log, ranks=ranks)
    told = {event.step: event for event in log.read() if event.kind == "step"}
    while step < job.n_steps:
        step += 1
        batch = renderer.render_batch(wait_for_batch(run_dir, step=step, ranks=ranks))
        algorithm.check(batch, step=step, vocab_size=vocab_size(policy), max_length=max_length(policy))
        draw_from(job.seed, step=step)
        metrics = algorithm.train(engine, batch, job=job, ranks=ranks)
        if batch.reward_mean is not None:
            metrics["reward_mean"] = batch.reward_mean
        event = told.get(step)
        if event is None:
            probe = answer_probe(engine, batch.probe, device=ranks.device) if algorithm.speaks else None
            adapter = save_version(policy, job=job, run_dir=run_dir, step=step, ranks=ranks)
            event = make_event("step", step=step, metrics=metrics, adapter=adapter, probe=probe)
        save_checkpoint(engine, run_dir=run_dir, event=event, retention=retention, ranks=ranks)
        if ranks.is_main and step not in told:
            log.append(event)
    algorithm.finish(policy, job, run_dir=run_dir, ranks=ranks)
    if ranks.is_main:
        log.append(make_event("done", step=step))


def save_version(policy: Policy, *, job: TrainJob, run_dir: Path, step: int, ranks: Ranks) -> AdapterFiles | None:
    """Write what engines are to serve after `step`, on rank 0."""
    if job.tuning == "full":
        return save_weights(policy, job=job, run_dir=run_dir, step=step, ranks=ranks)
    return save_adapter(policy, run_dir=run_dir, step=step, zero_stage=job.zero_stage, ranks=ranks)


def draw_from(seed: int, *, step: int) -> None:
    """Let whatever chance there is in a step depend on the seed and the step alone: a resumed run draws the same."""
    torch.manual_seed(seed * 1_000_003 + step)


def resume(engine: Any, *, run_dir: Path, log: EventLog, ranks: Ranks) -> int:
    """Load the newest whole checkpoint, say that the trainer is ready, and return the step, 0 without one."""
    checkpoint = find_checkpoint(run_dir, n_ranks=ranks.count) if ranks.is_main else None
    name = ranks.share_text(checkpoint.path.name if checkpoint else None)
    if name is not None:
        load_checkpoint(engine, run_dir / CHECKPOINTS_DIR / name)
    step = step_of(name) if name is not None else 0
    if ranks.is_main:
        is_told = any(event.kind == "step" and event.step == step for event in log.read())
        if checkpoint is not None and not is_told:
            log.append(checkpoint.event)
        log.append(make_event("ready", step=step, message=_describe_passed(checkpoint)))
    return step


def _describe_passed(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None or not checkpoint.passed_over:
        return ""
    return " ".join([*checkpoint.passed_over, f"Went back to the one of step {checkpoint.step}."])


def wait_for_batch(run_dir: Path, *, step: int, ranks: Ranks) -> TrainBatch:
    """Return the batch of `step` once it is in the inbox. Raises StopRequested, or BatchError if it cannot be read."""
    path = run_dir / batch_file(step)
    text = None
    while text is None:
        ranks.raise_if_stopped()
        text = ranks.share_text(path.read_text() if ranks.is_main and path.exists() else None)
        if text is None:
            time.sleep(POLL_S)
    try:
        return decode(TrainBatch, text)
    except ContractError as error:
        raise BatchError(f"The batch of step {step} cannot be read: {error}") from error
