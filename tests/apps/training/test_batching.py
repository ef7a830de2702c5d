"""The reasons for which a step is left out."""

import dataclasses
from typing import Any

import pytest

from apps.training.batching import DiscardReason, StepFacts, discard_reason

GOOD = StepFacts(
    is_complete=True,
    reward=0.0,
    is_excluded=False,
    is_side_call=False,
    is_already_trained=False,
    is_text_only=False,
    is_constrained=False,
    n_completion_tokens=3,
    temperature=0.8,
    top_p=1.0,
    top_k=0,
    staleness=4,
    is_cut_off=True,
)


def test_a_good_step_with_the_reward_zero_is_trained_on() -> None:
    assert discard_reason(GOOD, max_staleness=4, drops_cut_off=False) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_complete": False}, DiscardReason.INCOMPLETE),
        ({"reward": None}, DiscardReason.NO_REWARD),
        ({"is_excluded": True}, DiscardReason.EXCLUDED),
        ({"is_side_call": True}, DiscardReason.SIDE_CALL),
        ({"is_already_trained": True}, DiscardReason.ALREADY_TRAINED),
        ({"is_text_only": True}, DiscardReason.TEXT_ONLY),
        ({"is_constrained": True}, DiscardReason.CONSTRAINED),
        ({"n_completion_tokens": 0}, DiscardReason.EMPTY),
        ({"temperature": 0.0}, DiscardReason.GREEDY),
        ({"top_p": 0.95}, DiscardReason.CUT_SAMPLING),
        ({"top_k": 40}, DiscardReason.CUT_SAMPLING),
        ({"staleness": 5}, DiscardReason.STALE),
        ({"staleness": None}, DiscardReason.STALE),
    ],
)
def test_each_fault_has_its_reason(change: dict[str, Any], reason: DiscardReason) -> None:
    assert discard_reason(dataclasses.replace(GOOD, **change), max_staleness=4, drops_cut_off=False) is reason


def test_a_top_k_of_minus_one_is_off() -> None:
    assert discard_reason(dataclasses.replace(GOOD, top_k=-1), max_staleness=4, drops_cut_off=False) is None


def test_an_answer_that_was_cut_off_is_left_out_where_the_recipe_says_so() -> None:
    assert discard_reason(GOOD, max_staleness=4, drops_cut_off=True) is DiscardReason.CUT_OFF
    whole = dataclasses.replace(GOOD, is_cut_off=False)
    assert discard_reason(whole, max_staleness=4, drops_cut_off=True) is None
