"""What every kind of step asks of the engine, log-probs of a micro-batch and a move along the gradient; and what it
measures of its own work."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.training import TrainJob, TrainSample
from worker.trainer.errors import TrainerError
from worker.trainer.micro_batches import MicroBatch


def forward(engine: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of the completion tokens; (N,) each."""
    logprobs, entropies, *_ = engine(trie=micro.trie, targets=micro.targets)
    return logprobs, entropies


def apply_gradient(engine: Any, *, job: TrainJob, scale: float = 1.0) -> float:
    """Clip, step, and return the gradient's norm before clipping. Raises TrainerError when it is not finite."""
    for group in engine.optimizer.param_groups:
        group["lr"] = job.optimizer.learning_rate * scale
    if job.zero_stage > 0:
        engine.step()
        norm = float(engine.get_global_grad_norm())
    else:
        # Without ZeRO, DeepSpeed clips but forgets the norm.
        norm = float(torch.nn.utils.clip_grad_norm_(engine.module.parameters(), job.optimizer.max_grad_norm))
        engine.step()
    if not math.isfinite(norm):
        raise TrainerError("The gradient is not finite (NaN or infinite): lower the learning rate.")
    return norm


def measure_work(samples: Sequence[TrainSample], *, began: float, job: TrainJob) -> dict[str, float]:
    """Return what a step worked on and how fast, as in a run's metrics; `began` is a reading of `time.monotonic`."""
    seconds = time.monotonic() - began
    n_tokens = sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
    return {
        "learning_rate": job.optimizer.learning_rate,
        "samples": float(len(samples)),
        "tokens": float(n_tokens),
        "tokens_per_s": n_tokens / seconds,
        "seconds": seconds,
    }
