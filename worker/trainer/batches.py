"""From a TrainBatch to what the model computes: checks, minibatches, micro-batches.

Knows nothing of models, losses or processes beyond their number. Deterministic in (seed, step): every rank cuts the
same batch in the same way, and so does a run that was resumed. How samples share a micro-batch: micro_batches.py.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence

from apps.core.contracts.labelled import Judged
from apps.core.contracts.training import TrainBatch, TrainSample
from worker.trainer.errors import BatchError


def check_batch(batch: TrainBatch, *, step: int, vocab_size: int, max_length: int) -> None:
    """Raise BatchError, naming the sample, if training on `batch` would be meaningless or wrong."""
    _check_step(batch, step=step, n_answers=len(batch.samples))
    for sample in batch.samples:
        _check_sample(sample, vocab_size=vocab_size, max_length=max_length)
    _check_answers(batch.judged, vocab_size=vocab_size, max_length=max_length)
    if all(sample.is_silent for sample in batch.samples):
        raise BatchError(
            f"Every advantage in the batch of step {step} is zero, so it would change nothing: all rewards equal their "
            "baseline. Collect trajectories with differing rewards, or use the EMA baseline if each prompt occurs once."
        )
    _check_probe(batch.probe.token_ids, vocab_size=vocab_size, max_length=max_length)


def check_judged(batch: TrainBatch, *, step: int, vocab_size: int, max_length: int) -> None:
    """Raise BatchError, naming the answer, if learning from what was judged would be meaningless or wrong."""
    _check_step(batch, step=step, n_answers=sum(len(each.answers) for each in batch.judged))
    _check_answers(batch.judged, vocab_size=vocab_size, max_length=max_length)
    sides = Counter((each.pair, each.is_good) for each in batch.judged if each.pair)
    if any(sides[pair, True] != 1 or sides[pair, False] != 1 for pair, _ in sides):
        raise BatchError(f"A pair in the batch of step {step} is not one good and one bad trajectory.")
    _check_probe(batch.probe.token_ids, vocab_size=vocab_size, max_length=max_length)


def _check_answers(judged: Sequence[Judged], *, vocab_size: int, max_length: int) -> None:
    for answer in (answer for each in judged for answer in each.answers):
        where, ids = f"Answer {answer.answer_id}", (*answer.prompt_ids, *answer.completion_ids)
        if not answer.prompt_ids or not answer.completion_ids:
            raise BatchError(f"{where} has an empty prompt or completion.")
        _check_ids(where, ids, vocab_size=vocab_size, max_length=max_length)


def _check_step(batch: TrainBatch, *, step: int, n_answers: int) -> None:
    if batch.step != step:
        raise BatchError(f"Expected the batch of step {step}, got the one of step {batch.step}.")
    if not n_answers:
        raise BatchError(f"The batch of step {step} is empty: nothing was selected to train on.")


def _check_ids(where: str, ids: Sequence[int], *, vocab_size: int, max_length: int) -> None:
    if len(ids) > max_length:
        raise BatchError(f"{where} is longer than the model's {max_length} positions.")
    if not _are_known(ids, vocab_size=vocab_size):
        raise BatchError(
            f"{where} holds token ids outside the model's vocabulary of {vocab_size}: another tokenizer's?"
        )


def _check_sample(sample: TrainSample, *, vocab_size: int, max_length: int) -> None:
    where = f"Sample {sample.step_id}"
    ids, logprobs = sample.completion_ids, sample.logprobs
    if not sample.prompt_ids or not ids:
        raise BatchError(f"{where} has an empty prompt or completion.")
    if len(ids) != len(logprobs):
        raise BatchError(f"{where} has {len(ids)} completion tokens but {len(logprobs)} log-probs.")
    _check_ids(where, (*sample.prompt_ids, *ids), vocab_size=vocab_size, max_length=max_length)
    if sample.hint is not None:
        _check_ids(f"{where} with its hint", (*sample.hinted_ids, *ids), vocab_size=vocab_size, max_length=max_length)
    if not all(map(math.isfinite, (sample.advantage, sample.reward or 0.0, *logprobs))):
        raise BatchError(f"{where} has an advantage, reward or log-prob that is not a finite number.")
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
    """Return the samples in near-equal parts of about `minibatch_samples`: one optimizer step each.

    The trajectories are shuffled and stay whole: what their steps share is computed once, and an optimizer step weighs
    each as what it is, one rollout. Near-equal, because a part of one or two samples would be a step of full size on
    next to no evidence.
    """
    by_trajectory: dict[str, list[TrainSample]] = {}
    for sample in samples:
        by_trajectory.setdefault(sample.trajectory_id, []).append(sample)
    shuffled = list(by_trajectory.values())
    random.Random(f"{seed}/{step}").shuffle(shuffled)  # noqa: S311  reproducible, not secret
    size = len(samples) / max(1, round(len(samples) / minibatch_samples))
    parts: dict[int, list[TrainSample]] = {}
    n_before = 0
    for trajectory in shuffled:
        parts.setdefault(int((n_before + len(trajectory) / 2) / size), []).extend(trajectory)
        n_before += len(trajectory)
    return _join_small(list(parts.values()), least=size / 2)


def _join_small(parts: Sequence[list[TrainSample]], *, least: float) -> list[list[TrainSample]]:
    """Return `parts` with those of fewer than `least` samples joined to a neighbour."""
    joined = [parts[0]]
    for part in parts[1:]:
        if min(len(part), len(joined[-1])) < least:
            joined[-1] = joined[-1] + part
        else:
            joined.append(part)
    return joined
