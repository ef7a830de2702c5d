"""Returns of turns, worked by hand."""

import pytest

from apps.training.returns import add_final, discount_returns, undo_discount


@pytest.mark.parametrize(
    ("rewards", "discount", "returns"),
    [
        ([None, None, 1.0], 1.0, [1.0, 1.0, 1.0]),
        ([None, None, 1.0], 0.5, [0.25, 0.5, 1.0]),
        ([1.0, None, 1.0], 0.5, [1.25, 0.5, 1.0]),
        ([0.0, 0.5, None], 0.5, [0.25, 0.5, None]),  # nothing is known of what came last
        ([0.0, None], 1.0, [0.0, None]),  # zero is a reward, and missing is none
        ([None, None], 1.0, [None, None]),
        ([], 1.0, []),
    ],
)
def test_a_turn_is_worth_what_came_of_it(
    rewards: list[float | None], discount: float, returns: list[float | None]
) -> None:
    assert discount_returns(rewards, discount=discount) == returns


def test_the_trajectorys_own_reward_comes_with_its_last_turn() -> None:
    assert add_final([0.5, None], 1.0) == [0.5, 1.0]
    assert add_final([None, 0.5], 1.0) == [None, 1.5]
    assert add_final([0.5, None], None) == [0.5, None]
    assert add_final([], 1.0) == []


def test_rewards_are_found_again_in_returns_and_pass_over_what_was_left_out() -> None:
    returns = [value or 0.0 for value in discount_returns([0.5, None, 1.0], discount=0.5)]
    assert undo_discount(returns, discount=0.5) == [0.5, 0.0, 1.0]
    assert undo_discount([returns[0], returns[2]], discount=0.5) == [0.25, 1.0]
    assert undo_discount([], discount=0.5) == []
