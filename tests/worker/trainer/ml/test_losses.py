"""Policy losses: numbers worked by hand, and gradients against finite differences. Parity with TRL: test_trl_parity."""

import math

import pytest
import torch
from torch import Tensor

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.policy_tokens import compute, make_tokens
from worker.trainer.losses import LOSSES, PolicyTokens, policy_loss
from worker.trainer.measures import combine, k2, k3, summarise

PPO = LossSettings(kind="ppo", clip_low=0.2, clip_high=0.28)
DUAL = LossSettings(kind="dual_clip", clip_low=0.2, clip_high=0.2, dual_clip=3.0)
CISPO = LossSettings(kind="cispo", ratio_cap=5.0)
SAPO = LossSettings(kind="sapo", tau_positive=1.0, tau_negative=2.0)
DPPO = LossSettings(kind="dppo_tv", divergence_cap=0.2)
P_MU = math.exp(-2)  # 0.1353


@pytest.mark.parametrize(
    ("loss", "ratio", "advantage", "value", "is_clipped"),
    [
        (PPO, 1.0, 2.0, -2.0, False),
        (PPO, 1.5, 2.0, -2.56, True),  # 1.28 * 2: no more to gain
        (PPO, 0.5, 2.0, -1.0, False),  # worse than before: the whole slope back
        (PPO, 1.5, -2.0, 3.0, False),  # a bad token grown likelier: unbounded
        (PPO, 0.5, -2.0, 1.6, True),  # 0.8 * 2: punished enough
        (PPO, 1.5, 0.0, 0.0, False),
        (DUAL, 2.0, -2.0, 4.0, False),
        (DUAL, 4.0, -2.0, 6.0, True),  # 3 * 2: no more to lose
        (DUAL, 4.0, 2.0, -2.4, True),
        (CISPO, 2.0, 1.0, -2.0 * (math.log(2) - 2), False),
        (CISPO, 6.0, 1.0, -5.0 * (math.log(6) - 2), True),
        (SAPO, 1.0, 1.0, -2.0, False),  # 4 * sigmoid(0)
        (SAPO, 2.0, 1.0, -4 / (1 + math.exp(-1)), False),
        (SAPO, 2.0, -1.0, 2 / (1 + math.exp(-2)), False),
        (DPPO, 2.0, 1.0, -2.0, False),  # moved by 0.135
        (DPPO, 3.0, 1.0, 0.0, True),  # moved by 0.271, further the way it is pushed
        (DPPO, 3.0, -1.0, 3.0, False),  # moved by as much, and pushed back
    ],
)
def test_a_token_worked_by_hand(
    loss: LossSettings, ratio: float, advantage: float, value: float, is_clipped: bool
) -> None:
    result = compute([ratio], [advantage], loss=loss)
    assert float(result.loss) == pytest.approx(value)
    assert float(result.sums.clipped) == is_clipped


def test_a_sequence_is_clipped_as_one() -> None:
    loss = LossSettings(kind="gspo", clip_low=0.1, clip_high=0.1)
    one_sample = {"samples": torch.tensor([0, 0])}
    inside = compute([2.0, 0.5], [1.0, 1.0], loss=loss, **one_sample)  # geometric mean 1
    beyond = compute([2.0, 2.0], [1.0, 1.0], loss=loss, **one_sample)
    assert [float(inside.loss), float(inside.sums.clipped)] == pytest.approx([-2.0, 0])
    assert [float(beyond.loss), float(beyond.sums.clipped)] == pytest.approx([-2.2, 2])


def test_beyond_its_cap_a_token_of_cispo_still_teaches() -> None:
    gradients = {}
    for loss in (PPO, CISPO):
        tokens = make_tokens([6.0], [1.0])
        logprobs = tokens.logprobs.clone().requires_grad_()
        policy_loss(PolicyTokens(**{**vars(tokens), "logprobs": logprobs}), loss).loss.backward()
        gradients[loss.kind] = float(logprobs.grad)
    assert gradients == {"ppo": 0.0, "cispo": -5.0}


def test_the_loss_is_the_weighted_sum_and_adds_up_over_parts() -> None:
    thirds = {"weights": torch.full((3,), 1 / 3, dtype=torch.float64)}
    whole = compute([1.0, 1.1, 0.9], [1.0, 1.0, -1.0], loss=PPO, **thirds)
    parts = [
        compute([1.0, 1.1], [1.0, 1.0], loss=PPO, weights=thirds["weights"][:2]),
        compute([0.9], [-1.0], loss=PPO, weights=thirds["weights"][:1]),
    ]
    assert float(whole.loss) == pytest.approx((-1.0 - 1.1 + 0.9) / 3)
    assert float(whole.loss) == pytest.approx(sum(float(part.loss) for part in parts))
    together = summarise(combine([part.sums for part in parts]), n_optimizer_steps=1)
    assert together == pytest.approx(summarise(whole.sums, n_optimizer_steps=1))


@pytest.mark.parametrize("kind", LOSSES)
def test_no_token_at_all_adds_nothing(kind: str) -> None:
    result = compute([], [], loss=LossSettings(kind=kind))
    assert float(result.loss) == 0
    assert all(float(total) == 0 for total in vars(result.sums).values())


def test_metrics_worked_by_hand() -> None:
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    metrics = summarise(compute([1.0, 2.0, 0.5], [1.0] * 3, loss=PPO, weights=third).sums, n_optimizer_steps=1)
    assert metrics["ratio_mean"] == pytest.approx(3.5 / 3)
    assert metrics["ratio_max"] == pytest.approx(2.0)
    assert metrics["ess"] == pytest.approx(3.5**2 / (3 * (1 + 4 + 0.25)))
    assert metrics["kl"] == pytest.approx(((2 - 1 - math.log(2)) + (0.5 - 1 + math.log(2))) / 3)
    assert metrics["clip_fraction"] == pytest.approx(1 / 3)
    assert metrics["loss"] == pytest.approx(-(1.0 + 1.28 + 0.5) / 3)
    assert metrics["entropy"] == pytest.approx(1.0)
    assert (metrics["masked_fraction"], metrics["reference_kl"]) == (0, 0)


def test_equal_ratios_have_the_full_effective_sample_size() -> None:
    result = compute([1.0, 1.0], [1.0, 1.0], loss=PPO)
    assert summarise(result.sums, n_optimizer_steps=1)["ess"] == pytest.approx(1.0)


def test_k3_is_zero_at_equality_and_never_negative() -> None:
    values = k3(torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64))
    assert values.tolist() == pytest.approx([0.0, math.e - 2, math.exp(-1)])


@pytest.mark.parametrize(("kl", "extra"), [("none", 0.0), ("k2_loss", 0.5), ("k3_loss", math.e - 2)])
def test_the_distance_to_the_base_model_costs(kl: str, extra: float) -> None:
    loss = LossSettings(kl=kl, kl_coefficient=0.1)
    tokens = make_tokens([1.0], [2.0])
    result = compute([1.0], [2.0], loss=loss, reference=tokens.logprobs + 1.0)
    assert float(result.loss) == pytest.approx(-2.0 + 0.1 * extra)
    assert float(result.sums.reference_kl) == pytest.approx(math.e - 2)


def test_a_distance_to_nothing_is_an_error_and_not_no_distance() -> None:
    with pytest.raises(ValueError, match="base model"):
        compute([1.0], [2.0], loss=LossSettings(kl="k2_loss", kl_coefficient=0.1))


def test_k2_has_the_gradient_of_the_reverse_divergence_and_k3_has_not() -> None:
    """Enumerated over a vocabulary of 3: the expectation of each estimate's gradient under the policy itself."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    reference = torch.log_softmax(torch.tensor([0.1, 0.5, -0.4], dtype=torch.float64), 0)

    def gradient_of(estimate: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(estimate, logits)
        return gradient

    logprobs = torch.log_softmax(logits, 0)
    exact = gradient_of((logprobs.exp() * (logprobs - reference)).sum())
    probabilities = torch.log_softmax(logits.detach(), 0).exp()
    second = gradient_of((probabilities * k2(reference - torch.log_softmax(logits, 0))).sum())
    third = gradient_of((probabilities * k3(reference - torch.log_softmax(logits, 0))).sum())
    assert torch.allclose(second, exact, atol=1e-12)
    assert not torch.allclose(third, exact, atol=1e-2)


@pytest.mark.parametrize(
    "kind", ["ppo", "dual_clip", "gspo", "sapo", "dppo_tv"]
)  # cispo's is no derivative, on purpose
def test_the_gradient_is_that_of_finite_differences(kind: str) -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(5, (6, 1))
    behaviour = torch.log_softmax(torch.randn(6, 5, dtype=torch.float64), -1).gather(-1, ids).squeeze(-1)
    fixed = make_tokens(
        [1.0] * 6,
        [1.0, 1.0, 1.0, -0.7, -0.7, -0.7],
        behaviour=behaviour,
        proximal=behaviour,
        samples=torch.tensor([0, 0, 1, 1, 1, 2]),
        reference=behaviour + 0.1,
    )

    def loss(values: Tensor) -> Tensor:
        logprobs = torch.log_softmax(values, -1).gather(-1, ids).squeeze(-1)
        settings = LossSettings(kind=kind, kl="k2_loss", kl_coefficient=0.3)
        return policy_loss(PolicyTokens(**{**vars(fixed), "logprobs": logprobs}), settings).loss

    assert torch.autograd.gradcheck(loss, (logits,))


@pytest.mark.parametrize("kind", LOSSES)
def test_on_policy_every_loss_has_the_gradient_of_reinforce(kind: str) -> None:
    """At ratio 1 it is that of -A log pi, whatever the loss does further away (SAPO's 4 / tau is made for that)."""
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    fixed = logprobs.detach()
    tokens = make_tokens([1.0, 1.0], [0.5, -0.25], behaviour=fixed, proximal=fixed, weights=torch.ones(2))
    policy_loss(PolicyTokens(**{**vars(tokens), "logprobs": logprobs}), LossSettings(kind=kind)).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-0.5, 0.25])
