"""One step of a run that learns from labels: the optimizer steps over what was judged, and what they measured.

A loss on labels is a function of how likely whole answers are, and an answer's tokens may lie in several micro-batches,
those of a pair on several ranks. So how likely they are is measured first, without gradients; the loss's slope at each
answer is then the weight of each of its tokens, and the gradient is exact however the tokens are cut into micro-batches
and dealt to ranks. Knows the policy's engine; does not know where batches come from.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.labelled import Judged
from apps.core.contracts.training import LossSettings, TrainBatch, TrainJob, TrainSample
from worker.trainer.aggregation import weigh_samples
from worker.trainer.batches import split_minibatches
from worker.trainer.errors import BatchError, TrainerError
from worker.trainer.imitation import Part, backward_weighted, build_parts, make_sample
from worker.trainer.label_losses import LABEL_LOSSES, Verdicts, label_loss
from worker.trainer.model import max_length
from worker.trainer.ranks import Ranks
from worker.trainer.updates import apply_gradient, forward, measure_work

CROSS_ENTROPY = "cross_entropy"
BEHIND = (0,)  # stands for anything that could follow

ListSamples = Callable[[Sequence[Judged]], list[TrainSample]]


@dataclass(frozen=True, kw_only=True)
class LabelStep:
    """What one optimizer step measured; `values` are named as in a run's metrics."""

    values: Mapping[str, float]
    grad_norm: float


def train_on_labels(
    engine: Any, batch: TrainBatch, *, job: TrainJob, ranks: Ranks, list_samples: ListSamples
) -> dict[str, float]:
    """Train one epoch on what was judged and return the step's metrics. Raises StopRequested between optimizer steps.

    Every answer of the batch has tokens (rendering.py).
    """
    began = time.monotonic()
    samples = list_samples(batch.judged)
    minibatches = split_minibatches(
        samples, minibatch_samples=job.optimizer.minibatch_samples, seed=job.seed, step=batch.step
    )
    done = []
    for minibatch in minibatches:
        ranks.raise_if_stopped()
        done.append(optimizer_step(engine, minibatch, judged=batch.judged, job=job, ranks=ranks))
    return {
        **{name: sum(each.values[name] for each in done) / len(done) for name in done[0].values},
        "grad_norm": sum(each.grad_norm for each in done) / len(done),
        **measure_work(samples, began=began, job=job),
    }


def list_endings(judged: Sequence[Judged]) -> list[TrainSample]:
    """Return of each judged one all that was said up to its last answer's end, where a reward model looks.

    A target is asked for at the node before it: here one that stands for all that could follow.
    """
    return [
        make_sample(place, each, answer, prompt_ids=answer.prompt_ids + answer.completion_ids, completion_ids=BEHIND)
        for place, each in enumerate(judged)
        for answer in each.answers[-1:]
    ]


def optimizer_step(
    engine: Any, samples: Sequence[TrainSample], *, judged: Sequence[Judged], job: TrainJob, ranks: Ranks
) -> LabelStep:
    """Make one optimizer step on `samples`; the values are those of all ranks.

    Raises TrainerError when the loss or the gradient is not finite: the weights are then not to be used.
    """
    parts = build_parts(samples, job=job, ranks=ranks)
    measured: dict[str, float] = {}
    if job.loss.kind == CROSS_ENTROPY:
        slopes = -torch.tensor(weigh_samples(samples, job.loss), device=ranks.device)
    else:
        verdicts, owners = read_verdicts(engine, samples, parts, judged=judged, job=job, ranks=ranks)
        slopes, measured = weigh_verdicts(verdicts, job.loss)
        slopes = slopes[owners]
    values = backward_weighted(engine, parts, slopes.float(), ranks=ranks) | measured
    if not math.isfinite(values["loss"]):
        raise TrainerError("The loss is not a finite number (NaN or infinite): lower the learning rate.")
    return LabelStep(values=values, grad_norm=apply_gradient(engine, job=job))


def read_verdicts(
    engine: Any,
    samples: Sequence[TrainSample],
    parts: Sequence[Part],
    *,
    judged: Sequence[Judged],
    job: TrainJob,
    ranks: Ranks,
) -> tuple[Verdicts, Tensor]:
    """Return what the loss is computed from, by the present weights, and for each sample the place of its verdict."""
    numbers = [int(sample.step_id.partition("/")[0]) for sample in samples]
    own = {number: place for place, number in enumerate(dict.fromkeys(numbers))}
    owners = torch.tensor([own[number] for number in numbers], device=ranks.device)  # (S,)
    n_answers = torch.bincount(owners)
    lengths = torch.tensor([len(sample.completion_ids) for sample in samples], device=ranks.device)
    needs = LABEL_LOSSES[job.loss.kind]
    measure = measure_log_ratios if needs.needs_reference else measure_values
    log_ratios = measure(engine, parts, n_samples=len(samples), ranks=ranks)
    drift = measure_drift(engine, samples, job=job, ranks=ranks) if needs.needs_drift else 0.0
    summed = torch.zeros(len(own), dtype=torch.float64, device=ranks.device).index_add(0, owners, log_ratios)
    chosen, rejected = _find_pairs([judged[number] for number in own])
    verdicts = Verdicts(
        log_ratios=summed.requires_grad_(),
        n_tokens=torch.zeros_like(n_answers).index_add(0, owners, lengths),
        is_good=torch.tensor([judged[number].is_good for number in own], device=ranks.device),
        chosen=torch.tensor(chosen, dtype=torch.long, device=ranks.device),
        rejected=torch.tensor(rejected, dtype=torch.long, device=ranks.device),
        drift=drift * n_answers,
        level=engine.module.move_level(job.loss.beta * summed.detach()) if needs.needs_level else 0.0,
    )
    return verdicts, owners


def _find_pairs(judged: Sequence[Judged]) -> tuple[list[int], list[int]]:
    """Return the places of the good and of the bad ones, pair by pair."""
    sides: dict[tuple[str, bool], int] = {(each.pair, each.is_good): place for place, each in enumerate(judged)}
    names = dict.fromkeys(each.pair for each in judged if each.pair)
    return [sides[name, True] for name in names], [sides[name, False] for name in names]


def measure_log_ratios(engine: Any, parts: Sequence[Part], *, n_samples: int, ranks: Ranks) -> Tensor:
    """Return for each sample the sum over its tokens of l_pi - l_ref, (S,), float64, without gradient."""
    policy = measure_values(engine, parts, n_samples=n_samples, ranks=ranks)
    with engine.module.without_adapter():
        reference = measure_values(engine, parts, n_samples=n_samples, ranks=ranks)
    return policy - reference


def measure_values(engine: Any, parts: Sequence[Part], *, n_samples: int, ranks: Ranks) -> Tensor:
    """Return for each sample the sum over its tokens of what the engine says of them: log-probs, or a score."""
    totals = torch.zeros(n_samples, dtype=torch.float64, device=ranks.device)
    with torch.no_grad():
        for part in parts:
            logprobs, _ = forward(engine, part.micro)
            totals.index_add_(0, part.places, logprobs.double())
    return ranks.add_up(totals)


def measure_drift(engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> float:
    """Return KTO's z: the mean log-ratio of answers to each other's prompts, 0 at least.

    Each prompt is given the answer before it, as the reference implementation does; all are of one optimizer step.
    """
    if len(samples) < 2:
        raise BatchError("KTO compares answers with each other's prompts: an optimizer step needs two of them or more.")
    mixed = [
        dataclasses.replace(sample, completion_ids=before.completion_ids, logprobs=before.logprobs)
        for before, sample in zip([samples[-1], *samples[:-1]], samples, strict=True)
    ]
    limit = max_length(engine.module)
    fitting = [sample for sample in mixed if len(sample.prompt_ids) + len(sample.completion_ids) <= limit]
    if not fitting:
        return 0.0
    parts = build_parts(fitting, job=job, ranks=ranks)
    return max(0.0, float(measure_log_ratios(engine, parts, n_samples=len(fitting), ranks=ranks).mean()))


def weigh_verdicts(verdicts: Verdicts, loss: LossSettings) -> tuple[Tensor, dict[str, float]]:
    """Return the loss's slope at each h (J,), and what it measured.

    margin and accuracy compare the good with the bad: of each pair or, without pairs, of all.
    """
    value = label_loss(verdicts, loss)
    (slopes,) = torch.autograd.grad(value, verdicts.log_ratios)
    scale = loss.beta if LABEL_LOSSES[loss.kind].needs_reference else 1.0
    rewards = scale * verdicts.log_ratios.detach()
    good, bad = rewards[verdicts.is_good], rewards[~verdicts.is_good]
    if len(verdicts.chosen):
        margins = rewards[verdicts.chosen] - rewards[verdicts.rejected]
        is_right = margins > 0
    else:
        margins = _mean(good) - _mean(bad)
        is_right = torch.where(verdicts.is_good, rewards > verdicts.level, rewards <= verdicts.level)
    measured = {"loss": value, "margin": margins.mean(), "accuracy": is_right.double().mean()}
    measured |= {"reward_good": _mean(good), "reward_bad": _mean(bad)}
    return slopes, {name: float(number.detach()) for name, number in measured.items()}


def _mean(values: Tensor) -> Tensor:
    return values.mean() if len(values) else values.sum()
