"""Losses on labels in a world whose utilities are known: four answers, preferred as Bradley and Terry say.

Every pair is met as often as the world has it, so the optimum is that of the expected loss and not of a sample.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from worker.trainer.label_losses import Verdicts, label_loss

UTILITIES = torch.tensor([1.0, 0.3, -0.4, -0.9], dtype=torch.float64)
REFERENCE = torch.log_softmax(torch.tensor([0.2, -0.5, 0.6, 0.1], dtype=torch.float64), 0)
BETA = 0.5
N = len(UTILITIES)
PAIRS = list(itertools.permutations(range(N), 2))


def preferred(winner: int, loser: int, *, noise: float = 0.0) -> float:
    """How often the first is called better; `noise` of the labels are turned round."""
    right = float(torch.sigmoid(UTILITIES[winner] - UTILITIES[loser]))
    return (1 - noise) * right + noise * (1 - right)


def minimise(loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the values (N,) that make it smallest."""
    values = torch.zeros(N, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([values], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(values)
        value.backward()
        return value

    optimizer.step(closure)
    return values.detach()


def expect(settings: LossSettings, *, noise: float = 0.0) -> Callable[[Tensor], Tensor]:
    """The expected loss of a table of log-ratios, or of scores."""

    def expected(ratios: Tensor) -> Tensor:
        terms = [
            preferred(winner, loser, noise=noise) * label_loss(verdict_of(ratios, winner, loser), settings)
            for winner, loser in PAIRS
        ]
        return torch.stack(terms).sum()

    return expected


def verdict_of(ratios: Tensor, winner: int, loser: int) -> Verdicts:
    return Verdicts(
        log_ratios=ratios,
        n_tokens=torch.ones(N),
        is_good=torch.ones(N, dtype=torch.bool),
        chosen=torch.tensor([winner]),
        rejected=torch.tensor([loser]),
        drift=torch.zeros(N),
    )


def log_ratios(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits, 0) - REFERENCE


def divergence(logits: Tensor) -> float:
    """KL(optimum || policy); the optimum is the reference, bent by the utilities."""
    optimum = torch.log_softmax(REFERENCE + UTILITIES / BETA, 0)
    return float((optimum.exp() * (optimum - torch.log_softmax(logits, 0))).sum())


def test_a_reward_model_finds_the_utilities() -> None:
    scores = minimise(expect(LossSettings(kind="bradley_terry")))
    assert torch.allclose(scores - scores.mean(), UTILITIES - UTILITIES.mean(), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "noise"),
    [
        (LossSettings(kind="dpo", beta=BETA), 0.0),
        (LossSettings(kind="robust_dpo", beta=BETA, label_noise=0.2), 0.2),
    ],
    ids=["dpo", "robust dpo, a fifth of the labels wrong"],
)
def test_preferences_lead_to_the_optimum_of_reward_and_distance(settings: LossSettings, noise: float) -> None:
    expected = expect(settings, noise=noise)
    logits = minimise(lambda logits: expected(log_ratios(logits)))
    assert divergence(logits) < 1e-6


def test_dpo_takes_wrong_labels_at_their_word() -> None:
    expected = expect(LossSettings(kind="dpo", beta=BETA), noise=0.2)
    assert divergence(minimise(lambda logits: expected(log_ratios(logits)))) > 0.05


def single(settings: LossSettings) -> Callable[[Tensor], Tensor]:
    """The expected loss where each answer is called good as often as it beats one of the others."""
    chances = [sum(preferred(one, other) for other in range(N) if other != one) / (N - 1) for one in range(N)]

    def expected(logits: Tensor) -> Tensor:
        weights: list[Any] = []
        for is_good in (True, False):
            verdicts = Verdicts(
                log_ratios=log_ratios(logits)[:, None].expand(N, 1).reshape(N),
                n_tokens=torch.ones(N),
                is_good=torch.full((N,), is_good),
                chosen=torch.zeros(0, dtype=torch.long),
                rejected=torch.zeros(0, dtype=torch.long),
                drift=torch.zeros(N),
            )
            for one, chance in enumerate(chances):
                alone = Verdicts(**{**vars(verdicts), **{k: getattr(verdicts, k)[one : one + 1] for k in BY_ANSWER}})
                weights.append((chance if is_good else 1 - chance) * label_loss(alone, settings))
        return torch.stack(weights).sum()

    return expected


BY_ANSWER = ("log_ratios", "n_tokens", "is_good", "drift")


@pytest.mark.parametrize("kind", ["kto", "apo_zero", "bco"])
def test_single_verdicts_order_answers_by_their_utility(kind: str) -> None:
    ratios = log_ratios(minimise(single(LossSettings(kind=kind, beta=BETA))))
    assert ratios.argsort(descending=True).tolist() == [0, 1, 2, 3]


def test_imitating_the_better_ones_speaks_as_often_as_each_wins() -> None:
    wins = torch.tensor([sum(preferred(one, other) for other in range(N) if other != one) for one in range(N)])
    logits = minimise(lambda logits: -(wins * torch.log_softmax(logits, 0)).sum())
    assert torch.allclose(torch.softmax(logits, 0), (wins / wins.sum()).double(), atol=1e-5)
