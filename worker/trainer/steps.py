"""One step of a run: the optimizer steps over one batch, and what they measured.

Knows the policy's engine and the loss; does not know where batches come from or where results go.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from apps.core.contracts.training import TrainBatch, TrainJob, TrainSample
from worker.trainer.batches import (
    MicroBatch,
    build_filler,
    build_micro_batch,
    plan_micro_batches,
    split_minibatches,
)
from worker.trainer.errors import TrainerError
from worker.trainer.losses import LossSums, clipped_policy_loss, summarise
from worker.trainer.ranks import Ranks


def train_step(engine: Any, batch: TrainBatch, *, job: TrainJob, ranks: Ranks) -> dict[str, float]:
    """Train one epoch on `batch` and return the step's metrics. Raises StopRequested between optimizer steps."""
    began = time.monotonic()
    minibatches = split_minibatches(
        batch.samples, minibatch_samples=job.optimizer.minibatch_samples, seed=job.seed, step=batch.step
    )
    all_sums, grad_norms = [], []
    for minibatch in minibatches:
        ranks.raise_if_stopped()
        sums, grad_norm = optimizer_step(engine, minibatch, job=job, ranks=ranks)
        all_sums.append(sums)
        grad_norms.append(grad_norm)
    seconds = time.monotonic() - began
    n_tokens = sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in batch.samples)
    return {
        **summarise(_combine(all_sums)),
        "grad_norm": sum(grad_norms) / len(grad_norms),
        "mean_logprob_diff": float(all_sums[0].logprob_diff / all_sums[0].n_tokens),
        "learning_rate": job.optimizer.learning_rate,
        "samples": float(len(batch.samples)),
        "tokens": float(n_tokens),
        "tokens_per_s": n_tokens / seconds,
        "seconds": seconds,
    }


def optimizer_step(
    engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks
) -> tuple[LossSums, float]:
    """Make one optimizer step on `samples`; returns the loss's sums over all ranks and the gradient norm.

    Raises TrainerError when the loss or the gradient is not finite: the weights are then not to be used.
    """
    plans = plan_micro_batches(samples, max_tokens=job.max_tokens_per_microbatch, n_ranks=ranks.count)
    groups = plans[ranks.index]
    n_tokens = sum(len(sample.completion_ids) for sample in samples)
    parts = []
    for number, group in enumerate(groups, start=1):
        engine.set_gradient_accumulation_boundary(number == len(groups))
        micro = (build_micro_batch(group) if group else build_filler()).to(ranks.device)
        # DeepSpeed averages gradients over the ranks; the loss is a mean over the tokens of all of them.
        parts.append(_backward(engine, micro, job=job, n_tokens=n_tokens / ranks.count))
    sums = _reduce(_combine(parts), ranks=ranks)
    if not math.isfinite(float(sums.loss)):
        raise TrainerError("The loss is not a finite number (NaN or infinite): lower the learning rate.")
    grad_norm = _apply(engine, job=job)
    if not math.isfinite(grad_norm):
        raise TrainerError("The gradient is not finite (NaN or infinite): lower the learning rate.")
    return sums, grad_norm


def _backward(engine: Any, micro: MicroBatch, *, job: TrainJob, n_tokens: float) -> LossSums:
    logprobs, entropies = engine(micro.prefix_ids, micro.input_ids, micro.predicts, micro.targets, micro.temperatures)
    result = clipped_policy_loss(
        logprobs,
        micro.behaviour_logprobs,
        micro.advantages,
        entropies=entropies,
        clip_low=job.loss.clip_low,
        clip_high=job.loss.clip_high,
        n_tokens_total=n_tokens,
    )
    engine.backward(result.loss)
    return result.sums


def _apply(engine: Any, *, job: TrainJob) -> float:
    """Clip, step, and return the gradient's norm before clipping."""
    if job.zero_stage > 0:
        engine.step()
        return float(engine.get_global_grad_norm())
    # Without ZeRO, DeepSpeed clips but forgets the norm.
    norm = torch.nn.utils.clip_grad_norm_(engine.module.parameters(), job.optimizer.max_grad_norm)
    engine.step()
    return float(norm)


def _combine(parts: Sequence[LossSums]) -> LossSums:
    totals = {}
    for field in fields(LossSums):
        values = torch.stack([getattr(part, field.name) for part in parts])
        totals[field.name] = values.max() if field.name == "ratio_max" else values.sum()
    return LossSums(**totals)


def _reduce(sums: LossSums, *, ranks: Ranks) -> LossSums:
    if ranks.count == 1:
        return sums
    names = [field.name for field in fields(LossSums) if field.name != "ratio_max"]
    totals = ranks.add_up(torch.stack([getattr(sums, name) for name in names]))
    highest = torch.tensor(ranks.largest(float(sums.ratio_max)), dtype=torch.float64, device=totals.device)
    return LossSums(**dict(zip(names, totals.unbind(), strict=True)), ratio_max=highest)
