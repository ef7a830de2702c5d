"""One step of a run: the optimizer steps over one batch, and what they measured.

Knows the policy's engine and the loss; does not know where batches come from or where results go.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings, TrainBatch, TrainJob, TrainSample
from worker.trainer.aggregation import weigh_samples
from worker.trainer.batches import split_minibatches
from worker.trainer.corrections import needs_proximal
from worker.trainer.critic import Expected, Turns, assess_turns, gather_turns, value_loss
from worker.trainer.distillation import Teacher, ask_also, ask_teacher, coarse_divergence, measure_hints
from worker.trainer.divergence import K1_REWARD, ByStep, charge_tokens, charge_turns, read_reference
from worker.trainer.errors import TrainerError
from worker.trainer.imitation import backward_weighted, build_parts, list_answers
from worker.trainer.losses import KL_LOSSES, PolicyTokens, policy_loss
from worker.trainer.measures import LARGEST, LossSums, combine, effective_sample_size, summarise
from worker.trainer.micro_batches import MicroBatch, build_filler, build_micro_batch, plan_micro_batches
from worker.trainer.ranks import Ranks
from worker.trainer.updates import apply_gradient, forward, measure_work


@dataclass(frozen=True, kw_only=True)
class Part:
    """A micro-batch and what is known of its tokens before the step's first update; (N,) each."""

    micro: MicroBatch
    proximal: Tensor
    advantages: Tensor
    reference: Tensor | None
    turns: Turns | None = None
    teacher: Teacher | None = None


@dataclass(frozen=True, kw_only=True)
class Foresight:
    """What is known of a whole batch before its first optimizer step.

    Of each sample by its step id: what is expected of it, where there is a critic; the base model's log-probs of its
    tokens and their advantages, where the distance to it has been charged.
    """

    samples: Sequence[TrainSample]
    expected: Mapping[str, Expected] | None = None
    reference: ByStep | None = None
    advantages: ByStep | None = None


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """What one optimizer step measured. `scale`: what the guard left of it; `sft_loss`: if anything was imitated."""

    sums: LossSums
    grad_norm: float
    scale: float
    sft_loss: float | None = None


def train_step(engine: Any, batch: TrainBatch, *, job: TrainJob, ranks: Ranks) -> dict[str, float]:
    """Train one epoch on `batch` and return the step's metrics. Raises StopRequested between optimizer steps."""
    began = time.monotonic()
    foresight = look_over(engine, batch.samples, job=job, ranks=ranks)
    minibatches = split_minibatches(
        foresight.samples, minibatch_samples=job.optimizer.minibatch_samples, seed=job.seed, step=batch.step
    )
    prepared = [
        prepare_minibatch(engine, minibatch, job=job, ranks=ranks, foresight=foresight) for minibatch in minibatches
    ]
    imitated = list_answers(batch.judged)
    done = []
    for number, parts in enumerate(prepared):
        ranks.raise_if_stopped()
        shown = imitated[number :: len(prepared)]
        done.append(optimizer_step(engine, parts, job=job, ranks=ranks, imitated=shown))
    sums = combine([each.sums for each in done])
    sft_losses = [each.sft_loss for each in done if each.sft_loss is not None]
    return {
        **summarise(sums, n_optimizer_steps=len(done)),
        **({"value_loss": float(sums.value_loss) / len(done)} if job.critic is not None else {}),
        **({"sft_loss": fmean(sft_losses)} if sft_losses else {}),
        **({"teacher_kl": float(sums.teacher_kl) / len(done)} if job.loss.top_tokens else {}),
        "grad_norm": sum(each.grad_norm for each in done) / len(done),
        "step_scale": sum(each.scale for each in done) / len(done),
        "mean_logprob_diff": float(done[0].sums.logprob_diff / done[0].sums.n_tokens),
        **measure_work(batch.samples, began=began, job=job),
    }


def look_over(engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> Foresight:
    """Charge the distance to the base model where the recipe makes it part of the reward, and ask the critic if any.

    Both are matters of the whole batch and of whole trajectories, not of an optimizer step. Raises BatchError.
    """
    reference = None
    if job.loss.kl == K1_REWARD:
        reference = read_reference(engine, samples, job=job, ranks=ranks)
    if job.critic is None:
        advantages = None if reference is None else charge_tokens(samples, reference, loss=job.loss)
        return Foresight(samples=samples, reference=reference, advantages=advantages)
    if reference is not None:
        samples = charge_turns(samples, reference, loss=job.loss)
    assessed, expected = assess_turns(engine, samples, critic=job.critic, job=job, ranks=ranks)
    return Foresight(samples=assessed, expected=expected, reference=reference)


def prepare_minibatch(
    engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks, foresight: Foresight
) -> list[Part]:
    """Return this rank's micro-batches of one optimizer step, with the log-probs that its recipe compares with."""
    plans = plan_micro_batches(samples, max_tokens=job.max_tokens_per_microbatch, n_ranks=ranks.count)
    by_sample = weigh_samples(samples, job.loss)
    weights = {sample.step_id: weight for sample, weight in zip(samples, by_sample, strict=True)}
    groups = plans[ranks.index]
    parts = []
    for group in groups:
        micro = (build_micro_batch(group, weights=weights) if group else build_filler()).to(ranks.device)
        part = _look_ahead(engine, micro, group, loss=job.loss, foresight=foresight)
        if foresight.expected is not None:
            part = replace(part, turns=gather_turns(micro, group, foresight.expected, n_turns=len(samples)))
        parts.append(_take_hints(engine, part, group, loss=job.loss) if job.loss.hint_weight else part)
    return parts


def _look_ahead(
    engine: Any, micro: MicroBatch, group: Sequence[TrainSample], *, loss: LossSettings, foresight: Foresight
) -> Part:
    proximal, reference = micro.behaviour_logprobs, _gather(group, foresight.reference)
    with torch.no_grad():
        if needs_proximal(loss):
            proximal, _ = forward(engine, micro)
        if loss.kl in KL_LOSSES:
            with engine.module.without_adapter():
                reference, _ = forward(engine, micro)
    charged = _gather(group, foresight.advantages)
    advantages = micro.advantages if charged is None else charged
    return Part(micro=micro, proximal=proximal, advantages=advantages, reference=reference)


def _gather(group: Sequence[TrainSample], known: ByStep | None) -> Tensor | None:
    """Return what is known of the tokens of these samples (N,), None of nothing: a filler asks of nothing."""
    if known is None or not group:
        return None
    return torch.cat([known[sample.step_id] for sample in group])


def _take_hints(engine: Any, part: Part, group: Sequence[TrainSample], *, loss: LossSettings) -> Part:
    if loss.top_tokens:
        return replace(part, teacher=ask_teacher(engine, group, part.micro, n_tokens=loss.top_tokens))
    said = part.proximal
    if not needs_proximal(loss):
        with torch.no_grad():
            said, _ = forward(engine, part.micro)
    gaps = measure_hints(engine, group, part.micro, said=said)
    return replace(part, advantages=part.advantages + loss.hint_weight * gaps)


def optimizer_step(
    engine: Any, parts: Sequence[Part], *, job: TrainJob, ranks: Ranks, imitated: Sequence[TrainSample] = ()
) -> OptimizerStep:
    """Make one optimizer step on `parts`; the sums are those of all ranks.

    Beside them it imitates answers, a mean over their own tokens: how many there are weighs nothing.

    Raises TrainerError when the loss or the gradient is not finite: the weights are then not to be used.
    """
    own = []
    for number, part in enumerate(parts, start=1):
        engine.set_gradient_accumulation_boundary(number == len(parts) and not imitated)
        own.append(_backward(engine, part, job=job, n_ranks=ranks.count))
    sums = _reduce(combine(own), ranks=ranks)
    if not math.isfinite(float(sums.loss)):
        raise TrainerError("The loss is not a finite number (NaN or infinite): lower the learning rate.")
    sft_loss = _imitate(engine, imitated, job=job, ranks=ranks) if imitated else None
    scale = step_scale(sums, min_ess=job.loss.min_ess)
    grad_norm = apply_gradient(engine, job=job, scale=scale)
    return OptimizerStep(sums=sums, grad_norm=grad_norm, scale=scale, sft_loss=sft_loss)


def _imitate(engine: Any, answers: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> float:
    """Add the gradient of the answers' cross-entropy, weighed, to what is there; return the loss by itself."""
    by_token = LossSettings(aggregation="token_mean")
    slopes = -job.loss.sft_weight * torch.tensor(weigh_samples(answers, by_token), device=ranks.device)
    measured = backward_weighted(engine, build_parts(answers, job=job, ranks=ranks), slopes, ranks=ranks)
    return measured["loss"] / job.loss.sft_weight


def _backward(engine: Any, part: Part, *, job: TrainJob, n_ranks: int) -> LossSums:
    targets = part.micro.targets if part.teacher is None else ask_also(part.micro.targets, part.teacher)
    logprobs, entropies, *values = engine(trie=part.micro.trie, targets=targets)
    n_tokens = len(part.micro.samples)
    result = policy_loss(
        PolicyTokens(
            logprobs=logprobs[:n_tokens],
            behaviour=part.micro.behaviour_logprobs,
            proximal=part.proximal,
            advantages=part.advantages,
            weights=part.micro.weights,
            samples=part.micro.samples,
            entropies=entropies[:n_tokens],
            reference=part.reference,
        ),
        job.loss,
    )
    loss, sums = result.loss, result.sums
    if part.turns is not None and job.critic is not None:
        own = value_loss(values[0][part.turns.firsts], part.turns, clip=job.critic.value_clip).sum() / part.turns.n_all
        loss = loss + job.critic.value_coefficient * own
        sums = replace(sums, value_loss=own.detach().double())
    if part.teacher is not None:
        told = part.teacher
        divergences = coarse_divergence(logprobs[n_tokens:].view_as(told.logprobs), told.logprobs)
        own = (part.micro.weights[told.places] * divergences).sum()
        loss = loss + job.loss.hint_weight * own
        sums = replace(sums, teacher_kl=own.detach().double())
    engine.backward(loss * n_ranks)  # DeepSpeed averages gradients over the ranks; the loss is their sum
    return sums


def step_scale(sums: LossSums, *, min_ess: float) -> float:
    """Return how much of the step to take: all of it, or less in proportion when few samples carry the gradient."""
    return min(1.0, effective_sample_size(sums) / min_ess) if min_ess else 1.0


def _reduce(sums: LossSums, *, ranks: Ranks) -> LossSums:
    if ranks.count == 1:
        return sums
    names = [field.name for field in fields(LossSums) if field.name != LARGEST]
    totals = ranks.add_up(torch.stack([getattr(sums, name) for name in names]))
    highest = torch.tensor(ranks.largest(float(sums.ratio_max)), dtype=torch.float64, device=totals.device)
    return LossSums(**dict(zip(names, totals.unbind(), strict=True)), **{LARGEST: highest})
