"""The teacher's likeliest tokens: worked by hand, by finite differences, and against the whole vocabulary."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from apps.core.contracts.labelled import Conversation
from apps.core.contracts.training import LossSettings, OptimizerSettings, TrainSample
from tests.worker.trainer.ml.engines import PlainEngine, largest_gap, no_grad
from tests.worker.trainer.samples import VOCABULARY, even_weights, make_job, make_samples
from worker.trainer.aggregation import weigh_samples
from worker.trainer.distillation import coarse_divergence
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks
from worker.trainer.steps import Foresight, optimizer_step, prepare_minibatch

HINT = Conversation(messages="[]", tools="[]", answer="{}")


def logs(*shares: float) -> Tensor:
    return torch.tensor([shares], dtype=torch.float64).log()


def test_two_tokens_and_the_rest_worked_by_hand() -> None:
    expected = 0.5 * math.log(0.5 / 0.25) + 0.3 * math.log(0.3 / 0.5) + 0.2 * math.log(0.2 / 0.25)
    assert coarse_divergence(logs(0.5, 0.3), logs(0.25, 0.5)).tolist() == pytest.approx([expected])


def test_the_slope_is_that_of_the_numbers() -> None:
    torch.manual_seed(0)
    teacher = torch.randn(3, 6, dtype=torch.float64).log_softmax(-1)[:, :4]
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(lambda x: coarse_divergence(x.log_softmax(-1)[:, :4], teacher), (logits,))


def test_over_the_whole_vocabulary_it_is_the_divergence_and_over_less_no_more() -> None:
    torch.manual_seed(0)
    policy, teacher = (torch.randn(3, 6, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    whole = (policy.exp() * (policy - teacher)).sum(-1)
    assert torch.allclose(coarse_divergence(policy, teacher), whole, atol=1e-9)
    for n_tokens in (1, 3, 5):
        found = coarse_divergence(policy[:, :n_tokens], teacher[:, :n_tokens])
        assert (found >= 0).all()
        assert (found <= whole + 1e-9).all()


def test_its_slope_is_the_sampled_forms_in_the_mean() -> None:
    """d/dx sum_v p_v log(p_v / T_v) = E_v[(log p_v - log T_v) d log p_v / dx]: the advantage is l_T - l_pi."""
    torch.manual_seed(0)
    teacher = torch.randn(1, 5, dtype=torch.float64).log_softmax(-1)
    logits = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    (whole,) = torch.autograd.grad(coarse_divergence(logits.log_softmax(-1)[:, :4], teacher[:, :4]).sum(), logits)
    policy = logits.log_softmax(-1)
    advantages = (teacher - policy).detach()
    (sampled,) = torch.autograd.grad(-(policy.detach().exp() * advantages * policy).sum(), logits)
    assert torch.allclose(whole, sampled, atol=1e-9)


def hint(sample: TrainSample) -> TrainSample:
    return dataclasses.replace(sample, advantage=0.0, hint=HINT, hinted_ids=(7, 8, *sample.prompt_ids))


def distribution_of(policy: Policy, sample: TrainSample, prompt_ids: tuple[int, ...]) -> Tensor:
    """Log-probs of the whole vocabulary at each of the sample's tokens, computed alone; (N, V)."""
    ids = torch.tensor([[*prompt_ids, *sample.completion_ids]])
    logits = policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
    found: Tensor = (logits.float() / sample.temperature).log_softmax(-1)
    return found


@pytest.mark.parametrize("max_tokens", [10_000, 60], ids=["in one", "cut up"])
def test_a_step_follows_the_teacher_of_each_sample_alone(
    policy: Policy, model_dir: Path, tmp_path: Path, max_tokens: int
) -> None:
    plain, *others = make_samples(4, seed=1)
    samples = [dataclasses.replace(plain, advantage=0.0), *map(hint, others)]
    loss = LossSettings(hint_weight=0.5, top_tokens=VOCABULARY // 2)
    value = torch.zeros(())
    for sample, weight in zip(samples, weigh_samples(samples, loss), strict=True):
        if sample.hint is not None:
            with torch.no_grad():
                told = distribution_of(policy, sample, sample.hinted_ids)
            best, ids = told.topk(loss.top_tokens)
            said = distribution_of(policy, sample, sample.prompt_ids).gather(-1, ids)
            value = value + loss.hint_weight * weight * coarse_divergence(said, best).sum()
    engine = PlainEngine(policy)
    value.backward()
    alone = engine.gradients()
    unclipped = OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e9, minibatch_samples=100)
    job = make_job(model_dir, loss=loss, optimizer=unclipped, max_tokens_per_microbatch=max_tokens)
    ranks = Ranks(tmp_path, device="cpu")
    parts = prepare_minibatch(engine, samples, job=job, ranks=ranks, foresight=Foresight(samples=samples))
    assert not any(part.advantages.any() for part in parts)  # what is sampled gets no advantage of it
    done = optimizer_step(engine, parts, job=job, ranks=ranks)
    assert float(done.sums.teacher_kl) * loss.hint_weight == pytest.approx(float(value.detach()), rel=1e-5)
    assert largest_gap(alone, engine.gradients()) < 1e-5


def test_likeliest_tokens_are_those_of_the_whole_distribution(policy: Policy) -> None:
    samples = make_samples(2, seed=3)
    micro = build_micro_batch(samples, weights=even_weights(samples))
    ids, logprobs = no_grad(lambda: policy.rank_tokens(trie=micro.trie, targets=micro.targets, n_tokens=3))
    whole = no_grad(lambda: torch.cat([distribution_of(policy, each, each.prompt_ids) for each in samples]))
    best, best_ids = whole.topk(3)
    assert torch.equal(ids, best_ids)
    assert torch.allclose(logprobs, best, atol=1e-5)
