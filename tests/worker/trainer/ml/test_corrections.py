"""Off-policy corrections, worked by hand, and unbiased where they promise it."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.policy_tokens import make_tokens
from worker.trainer.corrections import CORRECTIONS, Drift, needs_proximal, weigh_tokens
from worker.trainer.losses import PolicyTokens, policy_loss
from worker.trainer.segments import segment_mean, segment_sum

SAMPLES = torch.tensor([0, 0, 1])
HALF_TO_TWO: dict[str, Any] = {"weight_low": 0.5, "weight_high": 2.0}


def weigh(weights: list[float], loss: LossSettings, *, advantages: list[float] | None = None) -> list[float]:
    logs = torch.tensor(weights, dtype=torch.float64).log()
    signs = torch.tensor(advantages or [1.0] * len(weights), dtype=torch.float64)
    drift = Drift(log_weights=logs, log_ratios=logs, advantages=signs, samples=SAMPLES)
    found: list[float] = weigh_tokens(drift, loss).tolist()
    return found


@pytest.mark.parametrize(
    ("correction", "bounds", "expected"),
    [
        ("none", {}, [1, 1, 1]),
        ("decoupled", {}, [0.4, 3, 1.5]),
        ("tis", {"weight_high": 2.0}, [0.4, 2, 1.5]),
        ("tis_sequence", {"weight_high": 1.3}, [1.2, 1.2, 1.3]),
        ("icepop", HALF_TO_TWO, [0, 0, 1.5]),
        ("mis", HALF_TO_TWO, [1.2, 1.2, 1.5]),
        ("mis", {"weight_low": 1.3, "weight_high": 2.0}, [0, 0, 1.5]),
        ("geometric", {"weight_low": 0.9, "weight_high": 1.1}, [1, 1, 0]),  # sqrt(1.2) = 1.095
    ],
)
def test_weights_worked_by_hand(correction: str, bounds: dict[str, Any], expected: list[float]) -> None:
    loss = LossSettings(correction=correction, **bounds)
    assert weigh([0.4, 3.0, 1.5], loss) == pytest.approx(expected)


@pytest.mark.parametrize("correction", ["icepop", "mis", "tis", "tis_sequence", "geometric"])
def test_a_weight_beyond_all_numbers_is_bounded_like_any_other(correction: str) -> None:
    """A gap of a tenth of a nat on each of a thousand tokens is one."""
    logs = torch.tensor([500.0, 500.0, -500.0])
    drift = Drift(log_weights=logs, log_ratios=logs, advantages=torch.ones(3), samples=SAMPLES)
    found = weigh_tokens(drift, LossSettings(correction=correction, **HALF_TO_TWO))
    assert found.tolist() == ([2, 2, 0] if correction.startswith("tis") else [0, 0, 0])


def test_bad_answers_that_the_policy_has_left_behind_are_masked() -> None:
    loss = LossSettings(correction="negative_mask", drift_cap=0.5)
    left = [math.exp(-0.6)] * 3
    assert weigh(left, loss, advantages=[-1.0, -1.0, 1.0]) == [0, 0, 1]
    assert weigh([math.exp(-0.4)] * 3, loss, advantages=[-1.0] * 3) == [1, 1, 1]


def test_a_masked_token_is_counted_and_has_no_gradient() -> None:
    loss = LossSettings(correction="icepop", **HALF_TO_TWO)
    tokens = make_tokens([1.0, 1.0], [1.0, 1.0])
    logprobs = tokens.logprobs.clone().requires_grad_()
    far = tokens.behaviour + torch.tensor([0.0, 3.0])
    result = policy_loss(PolicyTokens(**{**vars(tokens), "logprobs": logprobs, "proximal": far}), loss)
    result.loss.backward()
    assert float(result.sums.masked) == 1
    assert logprobs.grad is not None
    assert logprobs.grad[0] != 0
    assert logprobs.grad[1] == 0


def test_only_what_compares_with_the_start_of_the_step_pays_for_it() -> None:
    paid = {name for name in CORRECTIONS if needs_proximal(LossSettings(correction=name))}
    assert paid == CORRECTIONS.keys() - {"none", "negative_mask"}


def test_sums_over_samples() -> None:
    values = torch.tensor([1.0, 2.0, 5.0])
    assert segment_sum(values, SAMPLES).tolist() == [3, 3, 5]
    assert segment_mean(values, SAMPLES).tolist() == [1.5, 1.5, 5]


def _sequences() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All 27 answers of 3 tokens out of 3: ids (27, 3), rewards (27,), logits of policy and of mu (3, 3)."""
    torch.manual_seed(1)
    ids = torch.tensor(list(itertools.product(range(3), repeat=3)))
    rewards = torch.randn(27, dtype=torch.float64)
    policy, mu = (torch.randn(3, 3, dtype=torch.float64) for _ in range(2))
    return ids, rewards, policy.requires_grad_(), mu


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return torch.log_softmax(logits, -1)[torch.arange(3), ids]  # (27, 3)


@pytest.mark.parametrize(
    ("correction", "is_exact"), [("tis_sequence", True), ("decoupled", False), ("geometric", False)]
)
def test_enumerated_only_the_weight_of_the_whole_sequence_is_unbiased(correction: str, is_exact: bool) -> None:
    """The exact policy gradient against the expectation, under mu, of each correction's, at the start of the step."""
    ids, rewards, policy, mu = _sequences()
    (exact,) = torch.autograd.grad((_logprobs(policy, ids).sum(-1).exp() * rewards).sum(), policy)
    behaviour = _logprobs(mu, ids).flatten()
    chances = _logprobs(mu, ids).sum(-1).exp()
    tokens = PolicyTokens(
        logprobs=_logprobs(policy, ids).flatten(),
        behaviour=behaviour,
        proximal=_logprobs(policy, ids).flatten().detach(),
        advantages=rewards.repeat_interleave(3),
        weights=chances.repeat_interleave(3),
        samples=torch.arange(27).repeat_interleave(3),
        entropies=torch.zeros(81),
    )
    loss = LossSettings(correction=correction, weight_low=0.0, weight_high=1e9)
    (estimated,) = torch.autograd.grad(-policy_loss(tokens, loss).loss, policy)
    assert torch.allclose(estimated, exact, atol=1e-9) is is_exact
