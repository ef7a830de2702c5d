"""Losses: numbers worked by hand, gradients against finite differences, and parity with TRL's own loss path."""

import math
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from worker.trainer.losses import PolicyLoss, clipped_policy_loss, k3, summarise, token_logprobs

LOW, HIGH = 0.2, 0.28


def compute(ratios: list[float], advantages: list[float], *, n_tokens: float = 1.0) -> PolicyLoss:
    behaviour = torch.full((len(ratios),), -2.0, dtype=torch.float64)
    return clipped_policy_loss(
        behaviour + torch.tensor(ratios, dtype=torch.float64).log(),
        behaviour,
        torch.tensor(advantages, dtype=torch.float64),
        entropies=torch.ones_like(behaviour),
        clip_low=LOW,
        clip_high=HIGH,
        n_tokens_total=n_tokens,
    )


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.5, 2.0, -2.56, True),  # 1.28 * 2: no more to gain
        (0.5, 2.0, -1.0, False),  # worse than before: the whole slope back
        (1.5, -2.0, 3.0, False),  # a bad token grown likelier: unbounded
        (0.5, -2.0, 1.6, True),  # 0.8 * 2: punished enough
        (1.5, 0.0, 0.0, False),
    ],
)
def test_a_token_is_clipped_only_where_it_would_gain(
    ratio: float,
    advantage: float,
    loss: float,
    is_clipped: bool,
) -> None:
    result = compute([ratio], [advantage])
    assert float(result.loss) == pytest.approx(loss)
    assert float(result.sums.clipped) == is_clipped


def test_the_loss_is_the_mean_over_the_tokens_of_the_whole_step() -> None:
    together = compute([1.0, 1.1, 0.9], [1.0, 1.0, -1.0], n_tokens=3)
    apart = [compute([1.0, 1.1], [1.0, 1.0], n_tokens=3), compute([0.9], [-1.0], n_tokens=3)]
    assert float(together.loss) == pytest.approx((-1.0 - 1.1 + 0.9) / 3)
    assert float(together.loss) == pytest.approx(sum(float(part.loss) for part in apart))


def test_no_token_at_all_adds_nothing() -> None:
    result = compute([], [])
    assert float(result.loss) == 0
    assert all(float(total) == 0 for total in vars(result.sums).values())


def test_metrics_worked_by_hand() -> None:
    metrics = summarise(compute([1.0, 2.0, 0.5], [1.0] * 3).sums)
    assert metrics["ratio_mean"] == pytest.approx(3.5 / 3)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ess"] == pytest.approx(3.5**2 / (3 * (1 + 4 + 0.25)))
    assert metrics["kl"] == pytest.approx(((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))) / 3)
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["loss"] == pytest.approx(-(1.0 + 1.28 + 0.5) / 3)
    assert metrics["entropy"] == pytest.approx(1.0)


def test_equal_ratios_have_the_full_effective_sample_size() -> None:
    assert summarise(compute([1.0, 1.0], [1.0, 1.0]).sums)["ess"] == pytest.approx(1.0)


def test_k3_is_zero_at_equality_and_never_negative() -> None:
    values = k3(torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64))
    assert values.tolist() == pytest.approx([0.0, math.e - 2, math.exp(-1)])


def test_logprobs_and_entropy_are_those_at_the_sampling_temperature() -> None:
    logits = torch.tensor([[0.0, math.log(4.0)]])  # temperature 2: sqrt(4) = 2, so 1/3 and 2/3
    logprobs, entropies = token_logprobs(logits, torch.tensor([1]), torch.tensor([2.0]))
    assert float(logprobs) == pytest.approx(math.log(2 / 3))
    assert float(entropies) == pytest.approx(-(math.log(1 / 3) / 3 + 2 * math.log(2 / 3) / 3), abs=1e-6)


def test_the_gradient_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (6, 1))
    behaviour = torch.log_softmax(torch.randn(6, 5, dtype=torch.float64), -1).gather(-1, ids).squeeze(-1)
    advantages = torch.tensor([1.0, 1.0, 1.0, -0.7, -0.7, -0.7], dtype=torch.float64)

    def loss(values: Tensor) -> Tensor:
        return clipped_policy_loss(
            torch.log_softmax(values, -1).gather(-1, ids).squeeze(-1),
            behaviour,
            advantages,
            entropies=torch.zeros(6),
            clip_low=LOW,
            clip_high=HIGH,
            n_tokens_total=6,
        ).loss

    assert torch.autograd.gradcheck(loss, (logits,))


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    """At ratio 1 the surrogate's gradient is that of A log pi (REINFORCE)."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    result = clipped_policy_loss(
        logprobs,
        logprobs.detach(),
        torch.tensor([0.5, 0.5]),
        entropies=torch.zeros(2),
        clip_low=LOW,
        clip_high=HIGH,
        n_tokens_total=2,
    )
    result.loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.25, -0.25]


def _trl_loss(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """TRL's own `GRPOTrainer._compute_loss`, with the trainer around it replaced by its settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOTrainer  # type: ignore[import-not-found]  # noqa: PLC0415  slow to import
    accelerator = SimpleNamespace(num_processes=1, gather=lambda tensor: tensor, reduce=lambda tensor, **_: tensor)
    settings = SimpleNamespace(delta=None, steps_per_generation=1)
    trainer = MagicMock(
        args=settings,
        accelerator=accelerator,
        beta=0.0,
        loss_type="dapo",
        epsilon_low=LOW,
        epsilon_high=HIGH,
        importance_sampling_level="token",
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=False,
        aux_loss_enabled=False,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False,
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, torch.zeros_like(logprobs), None),
    )
    empty = torch.zeros(len(mask), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": empty,
        "prompt_mask": empty,
        "completion_ids": torch.zeros_like(mask, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": behaviour,
        "num_items_in_batch": mask.sum(),
    }
    loss: Any = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_gradient_are_those_of_trl(seed: int) -> None:
    torch.manual_seed(seed)
    behaviour = -torch.rand(4, 7) * 3
    start = behaviour + torch.randn(4, 7) * 0.3
    advantages, mask = torch.randn(4), torch.rand(4, 7) < 0.7
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    loss = clipped_policy_loss(
        ours[mask],
        behaviour[mask],
        advantages.repeat_interleave(mask.sum(-1)),
        entropies=torch.zeros(int(mask.sum())),
        clip_low=LOW,
        clip_high=HIGH,
        n_tokens_total=float(mask.sum()),
    ).loss
    reference = _trl_loss(theirs, behaviour, advantages, mask)
    loss.backward()
    reference.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert float((loss - reference).detach().abs()) < 1e-5
    assert (ours.grad - theirs.grad).abs().max() < 1e-5
