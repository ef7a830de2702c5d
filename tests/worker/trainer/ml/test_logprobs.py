"""Log-probs and entropies from logits: worked numbers, and values and gradients of torch's own log_softmax."""

import math

import pytest
import torch
from torch import Tensor

from worker.trainer import logprobs
from worker.trainer.logprobs import token_logprobs
from worker.trainer.tries import Targets


def make_targets(rows: list[int], token_ids: list[int], temperatures: list[float]) -> Targets:
    return Targets(
        nodes=torch.arange(len(temperatures)),
        temperatures=torch.tensor(temperatures, dtype=torch.float64),
        rows=torch.tensor(rows, dtype=torch.long),
        token_ids=torch.tensor(token_ids, dtype=torch.long),
    )


def by_log_softmax(logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    distribution = torch.log_softmax(logits / targets.temperatures[:, None], dim=-1)
    entropies = -(distribution.exp() * distribution).sum(-1)
    return distribution[targets.rows, targets.token_ids], entropies[targets.rows]


def test_they_are_those_at_the_sampling_temperature() -> None:
    logits = torch.tensor([[0.0, math.log(4.0)]])  # temperature 2: sqrt(4) = 2, so 1/3 and 2/3
    values, entropies = token_logprobs(logits, make_targets([0, 0], [1, 0], [2.0]))
    assert values.tolist() == pytest.approx([math.log(2 / 3), math.log(1 / 3)])
    assert entropies.tolist() == pytest.approx([-(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3)] * 2, abs=1e-6)


@pytest.mark.parametrize("chunk_size", [1, 40, 10_000], ids=["rows alone", "two rows", "all at once"])
def test_values_and_gradients_are_those_of_log_softmax(monkeypatch: pytest.MonkeyPatch, chunk_size: int) -> None:
    monkeypatch.setitem(logprobs.CHUNK_SIZES, "cpu", chunk_size)
    torch.manual_seed(0)
    start = torch.randn(5, 20, dtype=torch.float64) * 30  # far apart: a sum of plain exponentials would overflow
    targets = make_targets([0, 1, 1, 1, 4, 0], [3, 0, 19, 0, 7, 3], [1.0, 0.7, 1.0, 2.0, 1.3])
    outcomes = []
    for compute in (token_logprobs, by_log_softmax):
        logits = start.clone().requires_grad_()
        values, entropies = compute(logits, targets)
        (values * torch.linspace(-1, 2, 6, dtype=torch.float64)).sum().backward()
        outcomes.append((values.detach(), entropies.detach(), logits.grad))
    for mine, yours in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-12)


def test_entropies_carry_no_gradient() -> None:
    logits = torch.randn(2, 5, requires_grad=True)
    values, entropies = token_logprobs(logits, make_targets([0, 1], [1, 2], [1.0, 1.0]))
    assert values.requires_grad
    assert not entropies.requires_grad


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    targets = make_targets([0, 1, 2], [1, 2, 3], [1.0, 1.0, 1.0])
    rough = torch.randn(3, 5000).bfloat16()
    values, entropies = token_logprobs(rough, targets)
    expected, expected_entropies = by_log_softmax(rough.double(), targets)
    torch.testing.assert_close(values, expected.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies.float(), rtol=1e-5, atol=1e-5)
