"""Advantages worked by hand, unbiased where they promise it, and what they never depend on."""

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.training.estimators import (
    ESTIMATORS,
    BaselineState,
    Scored,
    SourceMean,
    are_all_zero,
    compute_advantages,
    compute_turn_advantages,
    overlong_penalty,
)
from apps.training.recipes import RecipeConfig

EMA = RecipeConfig(estimator="ema", ema_decay=0.9, ema_prior=0)
NEW = BaselineState()
KNOWN = BaselineState(mean=0.5)


def recipe_of(estimator: str, **settings: Any) -> RecipeConfig:
    return RecipeConfig.model_validate({"estimator": estimator, **settings})


RLOO = recipe_of("rloo")


def scored(rewards: Sequence[float], groups: Sequence[str] | None = None, **facts: Any) -> list[Scored]:
    names = groups or [""] * len(rewards)
    return [
        Scored(trajectory_id=f"t{number}", reward=reward, group=group, **facts)
        for number, (reward, group) in enumerate(zip(rewards, names, strict=True))
    ]


def estimate(estimator: str, items: Sequence[Scored]) -> list[float]:
    return values(compute_advantages(items, recipe=recipe_of(estimator), baseline=NEW)[0])


def values(advantages: dict[str, float]) -> list[float]:
    return list(advantages.values())


def test_the_first_batch_is_compared_with_its_own_mean() -> None:
    advantages, state = compute_advantages(scored([1.0, 0.0, 0.5]), recipe=EMA, baseline=NEW)
    assert values(advantages) == pytest.approx([0.5, -0.5, 0.0])
    assert state.mean == 0.5
    assert state.sources[""].n == 3
    assert state.sources[""].mean == pytest.approx(0.5)


def test_later_rewards_are_scored_before_they_move_the_mean() -> None:
    baseline = BaselineState(mean=0.5, sources={"": SourceMean(mean=0.5, n=100)})
    advantages, state = compute_advantages(scored([1.0, 0.0]), recipe=EMA, baseline=baseline)
    assert values(advantages) == pytest.approx([0.5, -0.55])  # 0.9 * 0.5 + 0.1 * 1.0 = 0.55
    assert state.mean == pytest.approx(0.495)
    assert state.sources[""].mean == pytest.approx(0.495)


def test_a_decay_of_zero_compares_with_the_one_before() -> None:
    recipe = RecipeConfig(ema_decay=0.0, ema_prior=0)
    advantages, state = compute_advantages(scored([0.3, 0.9]), recipe=recipe, baseline=BaselineState(mean=0.1))
    assert values(advantages) == pytest.approx([0.2, 0.6])
    assert state.mean == pytest.approx(0.9)


def test_an_agent_is_compared_with_itself_as_far_as_it_is_known() -> None:
    """Decay 0.9 remembers 10 rewards: the known one's mean counts half, the new one has the project's."""
    recipe = RecipeConfig(ema_decay=0.9, ema_prior=10)
    baseline = BaselineState(mean=0.2, sources={"good": SourceMean(mean=0.8, n=50)})
    (good,) = scored([1.0], source="good")
    new = dataclasses.replace(good, trajectory_id="new", source="new")
    advantages, state = compute_advantages([new, good], recipe=recipe, baseline=baseline)
    assert advantages["new"] == pytest.approx(0.8)
    assert advantages[good.trajectory_id] == pytest.approx(1.0 - (10 * 0.8 + 10 * 0.28) / 20)  # the mean has moved
    assert state.sources["new"] == SourceMean(mean=1.0, n=1)
    assert state.sources["good"].n == 51
    assert state.sources["good"].mean == pytest.approx(0.82)


def test_the_state_survives_its_way_through_the_database() -> None:
    _, state = compute_advantages(scored([1.0, 0.0], source="a"), recipe=EMA, baseline=KNOWN)
    assert BaselineState.of_json(json.loads(json.dumps(dataclasses.asdict(state)))) == state
    assert BaselineState.of_json({"mean": 0.5}) == KNOWN
    assert BaselineState.of_json({}) == NEW


def test_singletons_learn_with_a_moving_mean_and_not_in_groups() -> None:
    alone = scored([1.0, 0.0], ["a", "b"])
    with_mean, _ = compute_advantages(alone, recipe=EMA, baseline=NEW)
    assert values(with_mean) == [0.5, -0.5]
    for estimator in ("rloo", "grpo", "dr_grpo", "maxrl", "reinforce_pp_baseline"):
        assert estimate(estimator, alone) == [0.0, 0.0]


def test_a_trajectory_without_a_group_is_alone() -> None:
    assert are_all_zero(estimate("rloo", scored([1.0, 0.0])))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("batch", [0.54, -0.46, 0.04, -0.26, 0.14]),
        ("rloo", [0.75, -0.75, 0.0, -0.4, 0.4]),
        ("dr_grpo", [0.5, -0.5, 0.0, -0.2, 0.2]),
        ("grpo", [0.5 / 0.5001, -0.5 / 0.5001, 0.0, -0.2 / 0.2829427, 0.2 / 0.2829427]),
        ("maxrl", [1.0, -1.0, 0.0, -0.5, 0.5]),
        # over mean 0.46: the sum of squares is 0.592 (0.2916 + 0.2116 + 0.0016 + 0.0676 + 0.0196), the variance 0.1184
        ("reinforce_pp", [each / math.sqrt(0.1184) for each in (0.54, -0.46, 0.04, -0.26, 0.14)]),
        # centred in groups: squares 0.25, 0.25, 0, 0.04, 0.04, the variance 0.116
        ("reinforce_pp_baseline", [each / math.sqrt(0.116) for each in (0.5, -0.5, 0.0, -0.2, 0.2)]),
    ],
)
def test_numbers_worked_by_hand(estimator: str, expected: list[float]) -> None:
    items = scored([1.0, 0.0, 0.5, 0.2, 0.6], ["a", "a", "a", "b", "b"])
    advantages, state = compute_advantages(items, recipe=recipe_of(estimator), baseline=NEW)
    assert values(advantages) == pytest.approx(expected, rel=1e-5)
    assert state == NEW


def test_whitening_weighs_each_trajectory_by_its_tokens() -> None:
    long, short = scored([1.0, 0.0])
    advantages = estimate("reinforce_pp", [dataclasses.replace(long, n_tokens=3), short])
    spread = math.sqrt((3 * 0.25**2 + 0.75**2) / 4)
    assert advantages == pytest.approx([0.25 / spread, -0.75 / spread])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("reinforce_pp", [0.25, -0.75, 0.25]), ("reinforce_pp_baseline", [0.5, -0.5, 0.0])],
)
def test_where_the_distance_to_the_base_is_paid_first_the_spread_is_left_to_the_trainer(
    estimator: str, expected: list[float]
) -> None:
    items = scored([1.0, 0.0, 1.0], ["a", "a", ""])
    items[0] = dataclasses.replace(items[0], n_tokens=2)  # so the mean over tokens is 3 / 4
    recipe = recipe_of(estimator, kl="k1_reward")
    assert values(compute_advantages(items, recipe=recipe, baseline=NEW)[0]) == expected


def test_leave_one_out_is_the_unbiased_policy_gradient_and_the_mean_is_too_small() -> None:
    """Enumerated: two tries of a coin with p = 0.3 and reward 1 for heads; the gradient of the mean reward is 1.

    Dr.GRPO's is exactly (G - 1) / G of it, GRPO's is another one.
    """
    p = 0.3
    gradients = dict.fromkeys(("rloo", "dr_grpo", "grpo"), 0.0)
    for outcomes in itertools.product([1, 0], repeat=2):
        probability = math.prod(p if outcome else 1 - p for outcome in outcomes)
        slopes = [1 / p if outcome else -1 / (1 - p) for outcome in outcomes]
        for estimator in gradients:
            advantages = estimate(estimator, scored(outcomes, ["a", "a"]))
            gradients[estimator] += probability * sum(a * s for a, s in zip(advantages, slopes, strict=True)) / 2
    assert gradients["rloo"] == pytest.approx(1.0, abs=1e-9)
    assert gradients["dr_grpo"] == pytest.approx(0.5, abs=1e-9)
    assert gradients["grpo"] == pytest.approx(0.5 / (math.sqrt(0.5) + 1e-4), abs=1e-9)


@given(
    st.sampled_from(["ema", *ESTIMATORS]),
    st.integers(1, 20),
    st.sampled_from([0.1, 0.3, 0.7]),
)
def test_equal_rewards_give_exactly_zero(estimator: str, n_items: int, reward: float) -> None:
    assert are_all_zero(estimate(estimator, scored([reward] * n_items, ["a"] * n_items)))


@given(st.sampled_from(["rloo", "grpo", "dr_grpo", "maxrl"]), st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_groups_advantages_add_up_to_nothing(estimator: str, rewards: list[float]) -> None:
    advantages = estimate(estimator, scored(rewards, ["a"] * len(rewards)))
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6 * max(1.0, *map(abs, advantages)))


@pytest.mark.parametrize(("longest", "penalty"), [(0, 0.0), (80, 0.0), (90, -0.5), (100, -1.0), (500, -1.0)])
def test_too_long_an_answer_costs(longest: int, penalty: float) -> None:
    recipe = recipe_of("batch", overlong_tokens=100, overlong_window=20)
    assert overlong_penalty(longest, recipe=recipe) == pytest.approx(penalty)
    assert overlong_penalty(longest, recipe=recipe_of("batch")) == 0
    items = [*scored([0.5], longest=longest), Scored(trajectory_id="short", reward=0.5)]
    advantages, _ = compute_advantages(items, recipe=recipe, baseline=NEW)
    assert values(advantages) == pytest.approx([penalty / 2, -penalty / 2])


def test_nothing_to_score_changes_nothing() -> None:
    assert compute_advantages([], recipe=EMA, baseline=NEW) == ({}, NEW)


def test_a_reward_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        compute_advantages(scored([math.nan]), recipe=EMA, baseline=NEW)


def test_one_failure_in_five_is_told_from_the_rest() -> None:
    assert estimate("rloo", scored([1.0] * 4 + [0.0], ["a"] * 5)) == pytest.approx([0.25] * 4 + [-1.0])


def turns_of(returns: Sequence[Sequence[float]]) -> dict[int, list[Scored]]:
    """Trajectories t0, t1, … of one group, each with its turns' returns."""
    longest = max(map(len, returns))
    return {
        turn: [
            Scored(trajectory_id=f"t{number}", reward=values[turn], group="g")
            for number, values in enumerate(returns)
            if turn < len(values)
        ]
        for turn in range(longest)
    }


@pytest.mark.parametrize("estimator", ["ema", "batch", "rloo", "grpo", "reinforce_pp"])
def test_turns_are_compared_with_the_same_turn_of_others(estimator: str) -> None:
    """Discounted, first turns have lower returns than last ones; what all do alike has no advantage all the same."""
    recipe = recipe_of(estimator, credit="step", turn_discount=0.5)
    advantages, state = compute_turn_advantages(turns_of([(0.5, 1.0)] * 5), recipe=recipe, baseline=NEW)
    assert len(advantages) == 10
    assert are_all_zero(advantages.values())
    again, _ = compute_turn_advantages(turns_of([(0.5, 1.0)] * 5), recipe=recipe, baseline=state)
    assert are_all_zero(again.values())


def test_turns_worked_by_hand() -> None:
    recipe = recipe_of("rloo", credit="step")
    advantages, _ = compute_turn_advantages(turns_of([(1.0, 1.0), (0.0, -1.0), (0.5,)]), recipe=recipe, baseline=NEW)
    assert advantages == pytest.approx(
        {(0, "t0"): 0.75, (0, "t1"): -0.75, (0, "t2"): 0.0, (1, "t0"): 2.0, (1, "t1"): -2.0}
    )


def test_the_moving_means_of_turns_survive_the_database() -> None:
    recipe = recipe_of("ema", credit="step")
    _, state = compute_turn_advantages(turns_of([(1.0, 0.5), (0.0, 0.25)]), recipe=recipe, baseline=NEW)
    assert [state.turns[turn].mean for turn in ("0", "1")] == [0.5, 0.375]
    assert BaselineState.of_json(json.loads(json.dumps(dataclasses.asdict(state)))) == state
