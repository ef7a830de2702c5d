"""Advantages worked by hand, and the reasons for which a step is left out."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.training.batching import (
    BaselineState,
    DiscardReason,
    Scored,
    StepFacts,
    are_all_zero,
    compute_advantages,
    discard_reason,
)
from apps.training.recipes import RecipeConfig

EMA = RecipeConfig(estimator="ema", ema_decay=0.9)
GROUP = RecipeConfig(estimator="group", group_size=2, trajectories_per_step=48)
NEW = BaselineState()


def scored(rewards: Sequence[float], groups: Sequence[str] | None = None) -> list[Scored]:
    names = groups or [""] * len(rewards)
    return [
        Scored(trajectory_id=f"t{number}", reward=reward, group=group)
        for number, (reward, group) in enumerate(zip(rewards, names, strict=True))
    ]


def values(advantages: dict[str, float]) -> list[float]:
    return list(advantages.values())


def test_the_first_batch_is_compared_with_its_own_mean() -> None:
    advantages, state = compute_advantages(scored([1.0, 0.0, 0.5]), recipe=EMA, baseline=NEW)
    assert values(advantages) == pytest.approx([0.5, -0.5, 0.0])
    assert state == BaselineState(mean=0.5)


def test_later_rewards_are_scored_before_they_move_the_mean() -> None:
    advantages, state = compute_advantages(scored([1.0, 0.0]), recipe=EMA, baseline=BaselineState(mean=0.5))
    assert values(advantages) == pytest.approx([0.5, -0.55])  # 0.9 * 0.5 + 0.1 * 1.0 = 0.55
    assert state.mean == pytest.approx(0.495)


def test_a_decay_of_zero_compares_with_the_one_before() -> None:
    recipe = RecipeConfig(ema_decay=0.0)
    advantages, state = compute_advantages(scored([0.3, 0.9]), recipe=recipe, baseline=BaselineState(mean=0.1))
    assert values(advantages) == pytest.approx([0.2, 0.6])
    assert state.mean == pytest.approx(0.9)


def test_singletons_learn_with_a_moving_mean_and_not_in_groups() -> None:
    alone = scored([1.0, 0.0], ["a", "b"])
    with_mean, _ = compute_advantages(alone, recipe=EMA, baseline=NEW)
    in_groups, _ = compute_advantages(alone, recipe=GROUP, baseline=NEW)
    assert values(with_mean) == [0.5, -0.5]
    assert values(in_groups) == [0.0, 0.0]


def test_a_trajectory_without_a_group_is_alone() -> None:
    advantages, _ = compute_advantages(scored([1.0, 0.0]), recipe=GROUP, baseline=NEW)
    assert are_all_zero(advantages.values())


def test_in_a_group_each_is_compared_with_the_others() -> None:
    group = scored([1.0, 0.0, 0.5, 0.2, 0.6], ["a", "a", "a", "b", "b"])
    advantages, state = compute_advantages(group, recipe=GROUP, baseline=NEW)
    assert values(advantages) == pytest.approx([0.75, -0.75, 0.0, -0.4, 0.4])
    assert state == NEW


def test_leave_one_out_is_the_unbiased_policy_gradient() -> None:
    """Enumerated: two tries of a coin with p = 0.3 and reward 1 for heads; the gradient of the mean reward is 1."""
    p = 0.3
    gradient = 0.0
    for first, second in itertools.product([1, 0], repeat=2):
        advantages, _ = compute_advantages(scored([first, second], ["a", "a"]), recipe=GROUP, baseline=NEW)
        probability = math.prod(p if outcome else 1 - p for outcome in (first, second))
        slopes = [1 / p if outcome else -1 / (1 - p) for outcome in (first, second)]
        gradient += probability * sum(a * s for a, s in zip(values(advantages), slopes, strict=True)) / 2
    assert gradient == pytest.approx(1.0)


@given(st.lists(st.sampled_from([0.1, 0.3, 0.7]), min_size=1, max_size=20), st.sampled_from([0.1, 0.3, 0.7]))
def test_equal_rewards_give_exactly_zero(others: list[float], reward: float) -> None:
    n_items = len(others)
    same = scored([reward] * n_items, ["a"] * n_items)
    for recipe, baseline in ((EMA, NEW), (EMA, BaselineState(mean=reward)), (GROUP, NEW)):
        advantages, _ = compute_advantages(same, recipe=recipe, baseline=baseline)
        assert are_all_zero(advantages.values())


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=20))
def test_a_groups_advantages_add_up_to_nothing(rewards: list[float]) -> None:
    advantages, _ = compute_advantages(scored(rewards, ["a"] * len(rewards)), recipe=GROUP, baseline=NEW)
    assert sum(advantages.values()) == pytest.approx(0.0, abs=1e-6)


def test_nothing_to_score_changes_nothing() -> None:
    assert compute_advantages([], recipe=EMA, baseline=NEW) == ({}, NEW)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        compute_advantages(scored([math.nan]), recipe=EMA, baseline=NEW)


def test_five_successes_at_one_prompt_teach_nothing() -> None:
    advantages, _ = compute_advantages(scored([1.0] * 5, ["a"] * 5), recipe=GROUP, baseline=NEW)
    assert are_all_zero(advantages.values())


def test_one_failure_in_five_is_told_from_the_rest() -> None:
    advantages, _ = compute_advantages(scored([1.0] * 4 + [0.0], ["a"] * 5), recipe=GROUP, baseline=NEW)
    assert values(advantages) == pytest.approx([0.25] * 4 + [-1.0])


GOOD = StepFacts(
    is_complete=True,
    reward=0.0,
    is_excluded=False,
    is_side_call=False,
    is_already_trained=False,
    is_text_only=False,
    n_completion_tokens=3,
    temperature=0.8,
    top_p=1.0,
    top_k=0,
    staleness=4,
)


def test_a_good_step_with_the_reward_zero_is_trained_on() -> None:
    assert discard_reason(GOOD, max_staleness=4) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_complete": False}, DiscardReason.INCOMPLETE),
        ({"reward": None}, DiscardReason.NO_REWARD),
        ({"is_excluded": True}, DiscardReason.EXCLUDED),
        ({"is_side_call": True}, DiscardReason.SIDE_CALL),
        ({"is_already_trained": True}, DiscardReason.ALREADY_TRAINED),
        ({"is_text_only": True}, DiscardReason.TEXT_ONLY),
        ({"n_completion_tokens": 0}, DiscardReason.EMPTY),
        ({"temperature": 0.0}, DiscardReason.GREEDY),
        ({"top_p": 0.95}, DiscardReason.CUT_SAMPLING),
        ({"top_k": 40}, DiscardReason.CUT_SAMPLING),
        ({"staleness": 5}, DiscardReason.STALE),
        ({"staleness": None}, DiscardReason.STALE),
    ],
)
def test_each_fault_has_its_reason(change: dict[str, Any], reason: DiscardReason) -> None:
    assert discard_reason(dataclasses.replace(GOOD, **change), max_staleness=4) is reason


def test_a_top_k_of_minus_one_is_off() -> None:
    assert discard_reason(dataclasses.replace(GOOD, top_k=-1), max_staleness=4) is None
