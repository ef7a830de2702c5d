"""From a TrainBatch to what the model computes: checks, minibatches, padded micro-batches.

Axes: B samples of a micro-batch, P positions they share, T positions after those, K positions whose next token is a
completion token of some sample.
Knows nothing of models, losses or processes beyond their number. Deterministic in (seed, step): every rank cuts the
same batch in the same way, and so does a run that was resumed.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import torch
from torch import Tensor

from apps.core.contracts.training import TrainBatch, TrainSample
from worker.trainer.errors import BatchError

PAD = 0  # padding stands to the right, where a causal model cannot see it
MIN_SHARED_TOKENS = 16  # a shorter common prefix is not worth a pass of its own


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What goes through the model at once: P tokens that all samples begin with, computed once, then what differs.

    prefix_ids (1, P), P may be 0. input_ids (B, T): each sample from position P on, padded. predicts (B, T): true where
    the next token is a completion token; these N positions alone pass through the output layer. Of those next tokens,
    row by row, (N,): targets, behaviour_logprobs, advantages, temperatures, weights (in the loss), samples (the row).
    """

    prefix_ids: Tensor
    input_ids: Tensor
    predicts: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    temperatures: Tensor
    weights: Tensor
    samples: Tensor

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy whose tensors are on `device`."""
        return MicroBatch(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def check_batch(batch: TrainBatch, *, step: int, vocab_size: int, max_length: int) -> None:
    """Raise BatchError, naming the sample, if training on `batch` would be meaningless or wrong."""
    if batch.step != step:
        raise BatchError(f"Expected the batch of step {step}, got the one of step {batch.step}.")
    if not batch.samples:
        raise BatchError(f"The batch of step {step} is empty: nothing was selected to train on.")
    for sample in batch.samples:
        _check_sample(sample, vocab_size=vocab_size, max_length=max_length)
    if all(sample.advantage == 0 for sample in batch.samples):
        raise BatchError(
            f"Every advantage in the batch of step {step} is zero, so it would change nothing: all rewards equal their "
            "baseline. Collect trajectories with differing rewards, or use the EMA baseline if each prompt occurs once."
        )
    _check_probe(batch.probe.token_ids, vocab_size=vocab_size, max_length=max_length)


def _check_sample(sample: TrainSample, *, vocab_size: int, max_length: int) -> None:
    where = f"Sample {sample.step_id}"
    ids, logprobs = sample.completion_ids, sample.logprobs
    if not sample.prompt_ids or not ids:
        raise BatchError(f"{where} has an empty prompt or completion.")
    if len(ids) != len(logprobs):
        raise BatchError(f"{where} has {len(ids)} completion tokens but {len(logprobs)} log-probs.")
    if len(sample.prompt_ids) + len(ids) > max_length:
        raise BatchError(f"{where} is longer than the model's {max_length} positions.")
    if not _are_known((*sample.prompt_ids, *ids), vocab_size=vocab_size):
        raise BatchError(
            f"{where} holds token ids outside the model's vocabulary of {vocab_size}: another tokenizer's?"
        )
    if not math.isfinite(sample.advantage) or not all(map(math.isfinite, logprobs)):
        raise BatchError(f"{where} has an advantage or log-prob that is not a finite number.")
    if any(logprob > 1e-3 for logprob in logprobs):
        raise BatchError(f"{where} has a log-prob above zero.")
    if not sample.temperature > 0:
        raise BatchError(
            f"{where} was sampled at temperature {sample.temperature}: greedy samples cannot be trained on."
        )


def _check_probe(token_ids: Sequence[int], *, vocab_size: int, max_length: int) -> None:
    if not 2 <= len(token_ids) <= max_length or not _are_known(token_ids, vocab_size=vocab_size):
        raise BatchError(f"The probe must be 2 to {max_length} token ids of the model's vocabulary.")


def _are_known(token_ids: Sequence[int], *, vocab_size: int) -> bool:
    return min(token_ids) >= 0 and max(token_ids) < vocab_size


def split_minibatches(
    samples: Sequence[TrainSample], *, minibatch_samples: int, seed: int, step: int
) -> list[list[TrainSample]]:
    """Return the samples, shuffled, in near-equal parts of about `minibatch_samples`: one optimizer step each.

    Near-equal, because a last part of one or two samples would be a step of full size on next to no evidence.
    """
    shuffled = list(samples)
    random.Random(f"{seed}/{step}").shuffle(shuffled)  # noqa: S311  reproducible, not secret
    n_parts = max(1, round(len(shuffled) / minibatch_samples))
    bounds = [len(shuffled) * part // n_parts for part in range(n_parts + 1)]
    return [shuffled[start:end] for start, end in pairwise(bounds)]


def plan_micro_batches(
    samples: Sequence[TrainSample], *, max_tokens: int, n_ranks: int
) -> list[list[list[TrainSample]]]:
    """Return for each rank its groups of samples; all get the same number of groups (a short one gets empty ones).

    Sorted by length, then dealt out like cards, so that the padding in each group is small and the ranks' work is even.
    What a group computes (its common prefix once, the rest padded) stays within `max_tokens`; a single longer sample
    goes alone.
    """
    ordered = sorted(samples, key=_length)
    plans = [_pack(ordered[rank::n_ranks], max_tokens=max_tokens) for rank in range(n_ranks)]
    n_groups = max(len(plan) for plan in plans)
    return [plan + [[] for _ in range(n_groups - len(plan))] for plan in plans]


def _pack(ordered: Sequence[TrainSample], *, max_tokens: int) -> list[list[TrainSample]]:
    groups: list[list[TrainSample]] = []
    for sample in ordered:
        if groups and count_computed([*groups[-1], sample]) <= max_tokens:
            groups[-1].append(sample)
        else:
            groups.append([sample])
    return groups


def count_computed(samples: Sequence[TrainSample]) -> int:
    """Return how many positions the model computes for this group, padding included."""
    n_shared = count_shared(samples)
    return n_shared + len(samples) * (max(map(_length, samples)) - n_shared)


def count_shared(samples: Sequence[TrainSample]) -> int:
    """Return the length P of the prefix that is computed once; a prompt's last token, which predicts, is not in it."""
    if len(samples) == 1:
        return 0
    prompts = [sample.prompt_ids[:-1] for sample in samples]
    lowest, highest = min(prompts), max(prompts)  # what the extremes of the sorted order share, all share
    n_shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(lowest, highest, strict=False)))
    return n_shared if n_shared >= MIN_SHARED_TOKENS else 0


def _length(sample: TrainSample) -> int:
    return len(sample.prompt_ids) + len(sample.completion_ids)


def build_micro_batch(samples: Sequence[TrainSample], *, weights: Mapping[str, float]) -> MicroBatch:
    """Return the tensors of one group (not empty). `weights`: of a token of each sample, by step id."""
    n_shared = count_shared(samples)
    n_positions = max(map(_length, samples))
    ids = torch.full((len(samples), n_positions), PAD)  # (B, P + T)
    predicts = torch.zeros((len(samples), n_positions), dtype=torch.bool)
    for row, sample in enumerate(samples):
        ids[row, : _length(sample)] = torch.tensor(sample.prompt_ids + sample.completion_ids)
        predicts[row, len(sample.prompt_ids) - 1 : _length(sample) - 1] = True
    n_tokens = torch.tensor([len(sample.completion_ids) for sample in samples])
    return MicroBatch(
        prefix_ids=ids[:1, :n_shared],
        input_ids=ids[:, n_shared:],
        predicts=predicts[:, n_shared:],
        targets=torch.tensor([token for sample in samples for token in sample.completion_ids]),
        behaviour_logprobs=torch.tensor([logprob for sample in samples for logprob in sample.logprobs]),
        advantages=torch.tensor([sample.advantage for sample in samples]).repeat_interleave(n_tokens),
        temperatures=torch.tensor([sample.temperature for sample in samples]).repeat_interleave(n_tokens),
        weights=torch.tensor([weights[sample.step_id] for sample in samples]).repeat_interleave(n_tokens),
        samples=torch.arange(len(samples)).repeat_interleave(n_tokens),
    )


def build_filler() -> MicroBatch:
    """Return a micro-batch that predicts nothing: a rank with less work keeps step with the others and adds nothing."""
    nothing = torch.zeros(0)
    return MicroBatch(
        prefix_ids=torch.full((1, 0), PAD),
        input_ids=torch.full((1, 2), PAD),
        predicts=torch.zeros((1, 2), dtype=torch.bool),
        targets=torch.zeros(0, dtype=torch.long),
        behaviour_logprobs=nothing,
        advantages=nothing,
        temperatures=nothing,
        weights=nothing,
        samples=torch.zeros(0, dtype=torch.long),
    )
