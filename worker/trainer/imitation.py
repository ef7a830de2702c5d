"""Answers as parts of an optimizer step, each of whose tokens has a weight of its answer's own.

What the losses on labels and the imitation beside a policy gradient share. Knows the policy's engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.labelled import Answer, Judged
from apps.core.contracts.training import TrainJob, TrainSample
from worker.trainer.micro_batches import MicroBatch, build_filler, build_micro_batch, plan_micro_batches
from worker.trainer.ranks import Ranks
from worker.trainer.updates import forward


@dataclass(frozen=True, kw_only=True)
class Part:
    """A micro-batch, and for each of its tokens the place of its sample in the optimizer step; (N,)."""

    micro: MicroBatch
    places: Tensor


def list_answers(judged: Sequence[Judged]) -> list[TrainSample]:
    """Return each answer as what micro-batches are made of; the two of a pair as one trajectory, which stays whole.

    A sample's id begins with the place of its judged one. No log-prob of an engine is looked at.
    """
    return [
        make_sample(place, each, answer, prompt_ids=answer.prompt_ids, completion_ids=answer.completion_ids)
        for place, each in enumerate(judged)
        for answer in each.answers
    ]


def make_sample(
    place: int, judged: Judged, answer: Answer, *, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]
) -> TrainSample:
    """Return tokens of a judged one as a sample; `place` is that of the judged one."""
    return TrainSample(
        step_id=f"{place}/{answer.answer_id}",
        trajectory_id=judged.pair or judged.trajectory_id,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=(0.0,) * len(completion_ids),
        advantage=0.0,
        temperature=1.0,
    )


def build_parts(samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> list[Part]:
    """Return this rank's micro-batches of these answers."""
    places = {sample.step_id: place for place, sample in enumerate(samples)}
    plans = plan_micro_batches(samples, max_tokens=job.max_tokens_per_microbatch, n_ranks=ranks.count)
    parts = []
    for group in plans[ranks.index]:
        micro = build_micro_batch(group, weights=dict.fromkeys(places, 1.0)) if group else build_filler()
        own = torch.tensor([places[sample.step_id] for sample in group], dtype=torch.long)
        parts.append(Part(micro=micro.to(ranks.device), places=own[micro.samples].to(ranks.device)))
    return parts


def backward_weighted(engine: Any, parts: Sequence[Part], slopes: Tensor, *, ranks: Ranks) -> dict[str, float]:
    """Leave the gradient of sum slope x log-prob, slopes (S,), with the engine; return that sum and the entropy."""
    totals = torch.zeros(3, dtype=torch.float64, device=ranks.device)
    for number, part in enumerate(parts, start=1):
        engine.set_gradient_accumulation_boundary(number == len(parts))
        logprobs, entropies = forward(engine, part.micro)
        loss = (slopes[part.places] * logprobs).sum()
        engine.backward(loss * ranks.count)  # DeepSpeed averages gradients over the ranks; the loss is their sum
        totals += torch.stack([loss.detach().double(), entropies.double().sum(), totals.new_tensor(len(logprobs))])
    loss_sum, entropy, n_tokens = ranks.add_up(totals).tolist()
    return {"loss": loss_sum, "entropy": entropy / n_tokens}
