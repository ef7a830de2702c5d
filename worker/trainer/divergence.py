"""The distance to the base model as a cost of each token (k1), paid before anything is compared or normalised.

So REINFORCE++ has it (arXiv 2501.03262, eq. 8-10), and so has PPO, where the cost is part of a token's reward
(arXiv 1909.08593, section 2.1). Axes: T completion tokens of a sample. Knows the policy's engine.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings, TrainJob, TrainSample
from worker.trainer.micro_batches import build_filler, build_micro_batch, plan_micro_batches
from worker.trainer.ranks import Ranks
from worker.trainer.updates import forward

K1_REWARD = "k1_reward"
MIN_VARIANCE = 1e-8  # of REINFORCE++'s reference implementation

ByStep = Mapping[str, Tensor]  # (T,) of each sample, by its step id


def read_reference(engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> ByStep:
    """Return what the base model says of the samples' tokens, the same on every rank."""
    lengths = [len(sample.completion_ids) for sample in samples]
    places = {sample.step_id: place for place, sample in enumerate(samples)}
    plans = plan_micro_batches(samples, max_tokens=job.max_tokens_per_microbatch, n_ranks=ranks.count)
    found = torch.zeros(sum(lengths), dtype=torch.float64, device=ranks.device)
    told = found.split(lengths)
    with torch.no_grad(), engine.module.without_adapter():
        for group in plans[ranks.index]:
            micro = build_micro_batch(group, weights=dict.fromkeys(places, 0.0)) if group else build_filler()
            logprobs, _ = forward(engine, micro.to(ranks.device))
            for number, sample in enumerate(group):
                told[places[sample.step_id]].copy_(logprobs[micro.samples.to(ranks.device) == number])
    ranks.add_up(found)
    return {sample.step_id: said.float() for sample, said in zip(samples, told, strict=True)}


def charge_tokens(samples: Sequence[TrainSample], reference: ByStep, *, loss: LossSettings) -> ByStep:
    """Return A_t - beta sum_{s >= t} (l_mu - l_ref)_s of each token: REINFORCE++, eq. 8; then whitened, if so asked.

    The sum goes on over the trajectory's later samples, which stand in their order; a turn later is worth
    `turn_discount` as much, as with rewards.
    """
    behind: dict[str, float] = defaultdict(float)
    charged = {}
    for sample in reversed(samples):
        gaps = _find_gaps(sample, reference)
        to_end = gaps.flip(0).cumsum(0).flip(0) + loss.turn_discount * behind[sample.trajectory_id]
        behind[sample.trajectory_id] = float(to_end[0])
        charged[sample.step_id] = (sample.advantage - loss.kl_coefficient * to_end).float()
    return whiten(charged) if loss.whitens else charged


def charge_turns(samples: Sequence[TrainSample], reference: ByStep, *, loss: LossSettings) -> list[TrainSample]:
    """Return the samples with r - beta sum_s (l_mu - l_ref)_s for their rewards: a critic judges what is left.

    A missing reward stays missing.
    """
    return [
        sample
        if sample.reward is None
        else replace(sample, reward=sample.reward - loss.kl_coefficient * float(_find_gaps(sample, reference).sum()))
        for sample in samples
    ]


def _find_gaps(sample: TrainSample, reference: ByStep) -> Tensor:
    told = reference[sample.step_id].double()
    return torch.tensor(sample.logprobs, dtype=torch.float64, device=told.device) - told


def whiten(advantages: ByStep) -> ByStep:
    """Return (A - mean) / std, over all tokens of the batch: REINFORCE++, eq. 10."""
    every = torch.cat(list(advantages.values()))
    spread = every.var(correction=0).clamp(min=MIN_VARIANCE).sqrt()
    return {step_id: (values - every.mean()) / spread for step_id, values in advantages.items()}
