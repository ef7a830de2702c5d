"""Losses on labels: numbers worked by hand. Parity with TRL: test_trl_label_parity."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.verdicts import make_verdicts
from worker.trainer.label_losses import LABEL_LOSSES, label_loss
from worker.trainer.label_steps import weigh_verdicts

LN3 = math.log(3)  # sigmoid(ln 3) = 3/4


def loss_of(kind: str, good: list[float], bad: list[float], *, changes: Any = None, **settings: Any) -> float:
    return float(label_loss(make_verdicts(good, bad, **(changes or {})), LossSettings(kind=kind, **settings)).detach())


def test_dpo_is_the_surprise_at_the_preference() -> None:
    assert loss_of("dpo", [2 * LN3], [0.0], beta=0.5) == pytest.approx(-math.log(0.75))
    assert loss_of("dpo", [0.0], [2 * LN3], beta=0.5) == pytest.approx(-math.log(0.25))
    assert loss_of("dpo", [2 * LN3, 0.0], [0.0, 2 * LN3], beta=0.5) == pytest.approx(-math.log(0.75 * 0.25) / 2)


def test_robust_dpo_takes_back_what_wrong_labels_would_add() -> None:
    expected = (0.8 * -math.log(0.75) - 0.2 * -math.log(0.25)) / 0.6
    assert loss_of("robust_dpo", [LN3], [0.0], beta=1.0, label_noise=0.2) == pytest.approx(expected)
    assert loss_of("robust_dpo", [LN3], [0.0], beta=1.0) == pytest.approx(loss_of("dpo", [LN3], [0.0], beta=1.0))


def test_robust_dpo_is_dpo_on_the_true_labels_on_average() -> None:
    right = loss_of("robust_dpo", [LN3], [0.0], beta=1.0, label_noise=0.2)
    wrong = loss_of("robust_dpo", [0.0], [LN3], beta=1.0, label_noise=0.2)
    assert 0.8 * right + 0.2 * wrong == pytest.approx(loss_of("dpo", [LN3], [0.0], beta=1.0))


def test_ipo_wants_a_margin_by_token_and_no_more() -> None:
    assert loss_of("ipo", [20.0], [0.0], beta=0.1, changes={"n_tokens": 4}) == pytest.approx(0.0)
    assert loss_of("ipo", [28.0], [0.0], beta=0.1, changes={"n_tokens": 4}) == pytest.approx(4.0)


def test_kto_compares_with_the_drift_of_any_other_answer() -> None:
    drift = {"drift": torch.tensor([1.0, 1.0], dtype=torch.float64)}
    assert loss_of("kto", [1 + LN3], [1 - LN3], beta=1.0, changes=drift) == pytest.approx(0.25)
    weighed = loss_of("kto", [1 + LN3], [1 - LN3], beta=1.0, good_weight=2.0, bad_weight=4.0, changes=drift)
    assert weighed == pytest.approx((2 * 0.25 + 4 * 0.25) / 2)


def test_apo_zero_needs_nothing_to_compare_with() -> None:
    assert loss_of("apo_zero", [LN3], [], beta=1.0) == pytest.approx(0.25)
    assert loss_of("apo_zero", [], [LN3], beta=1.0) == pytest.approx(0.75)


def test_bco_compares_with_the_running_mean() -> None:
    assert loss_of("bco", [LN3 + 0.5], [], beta=1.0, changes={"level": 0.5}) == pytest.approx(-math.log(0.75))
    assert loss_of("bco", [], [LN3 + 0.5], beta=1.0, changes={"level": 0.5}) == pytest.approx(-math.log(0.25))


@pytest.mark.parametrize("kind", LABEL_LOSSES)
def test_the_slope_is_that_of_finite_differences_and_points_the_right_way(kind: str) -> None:
    loss = LossSettings(kind=kind, beta=0.3, label_noise=0.1, good_weight=1.5)
    still = make_verdicts([0.4, -0.2], [0.3, 0.1])
    slopes, measured = weigh_verdicts(still, loss)
    for place in range(4):
        moved = []
        for nudge in (1e-6, -1e-6):
            ratios = torch.tensor([0.4, -0.2, 0.3, 0.1], dtype=torch.float64)
            ratios[place] += nudge
            moved.append(float(label_loss(dataclasses.replace(still, log_ratios=ratios), loss)))
        assert float(slopes[place]) == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-7)
    assert (slopes[:2] < 0).all()  # good ones become likelier
    assert (slopes[2:] > 0).all()
    scale = 0.3 if LABEL_LOSSES[kind].needs_reference else 1.0  # a reward model's scores are what they are
    assert measured["margin"] == pytest.approx(scale * -0.1)


def test_metrics_worked_by_hand() -> None:
    _, pairs = weigh_verdicts(make_verdicts([3.0, 1.0], [1.0, 2.0]), LossSettings(kind="dpo", beta=0.5))
    assert pairs == pytest.approx(
        {"loss": pairs["loss"], "margin": 0.25, "accuracy": 0.5, "reward_good": 1.0, "reward_bad": 0.75}
    )
    alone = make_verdicts([3.0, -1.0], [-1.0], chosen=torch.tensor([], dtype=torch.long), rejected=torch.tensor([]))
    _, unpaired = weigh_verdicts(alone, LossSettings(kind="apo_zero", beta=0.5))
    assert unpaired["accuracy"] == pytest.approx(2 / 3)
    assert unpaired["margin"] == pytest.approx(0.5 - -0.5)
