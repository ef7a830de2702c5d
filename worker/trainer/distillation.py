"""Hindsight distillation: the policy with a hint before its eyes teaches the policy without it.

Either what was sampled is compared, which gives each token an advantage, or the teacher's likeliest tokens are, which
takes the chance out of it. The teacher speaks by the weights at the start of the step. Axes: N completion tokens of a
micro-batch, M of them of samples with a hint, K likeliest tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.training import TrainSample
from worker.trainer.micro_batches import MicroBatch, build_filler, build_micro_batch
from worker.trainer.tries import Targets
from worker.trainer.updates import forward

SMALLEST = 1e-6  # a share of the rest of the vocabulary below which it is rounding


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """What the teacher holds likeliest. places (M,): of which tokens, among the N; token_ids, logprobs (M, K)."""

    places: Tensor
    token_ids: Tensor
    logprobs: Tensor


def measure_hints(engine: Any, group: Sequence[TrainSample], micro: MicroBatch, *, said: Tensor) -> Tensor:
    """Return l_T - l_pi of each token (N,), 0 where its sample has no hint; `said` is l_pi at the start of the step.

    OpenClaw-RL (arXiv 2603.10165). As an advantage its gradient is that of the reverse divergence from the teacher on
    the policy's own samples.
    """
    teacher, places = _hint(group, micro)
    with torch.no_grad():
        told, _ = forward(engine, teacher)
    gaps = torch.zeros_like(said)
    gaps[places] = told - said[places]
    return gaps


def ask_teacher(engine: Any, group: Sequence[TrainSample], micro: MicroBatch, *, n_tokens: int) -> Teacher:
    """Return the teacher's `n_tokens` likeliest tokens where the samples with a hint have theirs."""
    teacher, places = _hint(group, micro)
    with torch.no_grad():
        token_ids, logprobs = engine.module.rank_tokens(trie=teacher.trie, targets=teacher.targets, n_tokens=n_tokens)
    return Teacher(places=places, token_ids=token_ids, logprobs=logprobs)


def _hint(group: Sequence[TrainSample], micro: MicroBatch) -> tuple[MicroBatch, Tensor]:
    """Return the micro-batch that the teacher sees, and the places (M,) of its tokens among those of `micro`."""
    hinted = [replace(sample, prompt_ids=sample.hinted_ids) for sample in group if sample.hint is not None]
    weights = dict.fromkeys((sample.step_id for sample in hinted), 0.0)
    teacher = build_micro_batch(hinted, weights=weights) if hinted else build_filler()
    has_hint = torch.tensor([sample.hint is not None for sample in group], dtype=torch.bool)
    device = micro.samples.device
    return teacher.to(device), has_hint.to(device)[micro.samples].nonzero().flatten()


def ask_also(targets: Targets, teacher: Teacher) -> Targets:
    """Return `targets` (N) with the teacher's tokens behind them (M x K): the policy says how likely it holds these."""
    n_tokens = teacher.token_ids.shape[1]
    return replace(
        targets,
        rows=torch.cat([targets.rows, targets.rows[teacher.places].repeat_interleave(n_tokens)]),
        token_ids=torch.cat([targets.token_ids, teacher.token_ids.flatten()]),
    )


def coarse_divergence(logprobs: Tensor, teacher: Tensor) -> Tensor:
    """Return sum_v p_v log(p_v / T_v) over K tokens and, as one more, all the rest of the vocabulary; (M,).

    `logprobs` and `teacher` (M, K): how likely policy and teacher hold the teacher's likeliest tokens. The reverse
    divergence, no larger than over the whole vocabulary: self-distillation fine-tuning (arXiv 2601.19897).
    """
    among = (logprobs.exp() * (logprobs - teacher)).sum(-1)
    rest, rest_of_teacher = _rest_of(logprobs), _rest_of(teacher)
    return among + rest * (rest.log() - rest_of_teacher.log())


def _rest_of(logprobs: Tensor) -> Tensor:
    return (1 - logprobs.exp().sum(-1)).clamp(min=SMALLEST)
