"""From labels to what is learnt from them, worked by hand."""

from apps.core.contracts.labelled import Answer, Judged
from apps.training.judging import (
    Corrected,
    Tried,
    accept,
    compare_corrected,
    compare_tries,
    judge,
    match_tries,
)


def answer(name: str) -> Answer:
    return Answer(answer_id=name, prompt_ids=(1,), completion_ids=(2,))


A, B, C, BETTER = answer("a"), answer("b"), answer("c"), answer("b/correction")
MIXED = Tried(trajectory_id="t", reward=0.4, answers=(A, C), step_rewards={"c": 0.9, "b": -1.0})
CORRECTED = Tried(trajectory_id="t", reward=0.0, answers=(A,), corrected=(Corrected(original=B, better=BETTER),))


def told(judged: list[Judged]) -> list[tuple[list[str], bool]]:
    return [([each.answer_id for each in one.answers], one.is_good) for one in judged]


def test_what_is_accepted_is_above_the_bound() -> None:
    whole = Tried(trajectory_id="t", reward=0.6, answers=(A, B))
    assert told(accept(whole, above=0.5)) == [(["a", "b"], True)]
    assert accept(whole, above=0.6) == []


def test_an_answer_with_a_reward_of_its_own_is_judged_by_it() -> None:
    assert told(accept(MIXED, above=0.5)) == [(["c"], True)]
    assert told(judge(MIXED, above=0.5)) == [(["c"], True), (["a"], False)]


def test_a_missing_reward_is_neither_good_nor_bad() -> None:
    silent = Tried(trajectory_id="t", reward=None, answers=(A, C), step_rewards={"c": 0.9})
    assert told(accept(silent, above=-0.5)) == [(["c"], True)]
    assert told(judge(silent, above=0.5)) == [(["c"], True)]


def test_a_correction_is_good_whatever_the_rest_was_worth() -> None:
    assert told(accept(CORRECTED, above=0.5)) == [(["b/correction"], True)]
    assert told(judge(CORRECTED, above=0.5)) == [(["a"], False), (["b/correction"], True), (["b"], False)]
    pair = compare_corrected(CORRECTED)
    assert told(pair) == [(["b/correction"], True), (["b"], False)]
    assert {each.pair for each in pair} == {"t/0"}


def test_tries_are_compared_with_what_they_really_answered() -> None:
    other = Tried(trajectory_id="u", reward=1.0, answers=(C,))
    pair = compare_tries(other, CORRECTED, pair="u/t")
    assert told(pair) == [(["c"], True), (["a", "b"], False)]
    assert {each.pair for each in pair} == {"u/t"}
    assert compare_tries(other, Tried(trajectory_id="v", reward=0.0, answers=()), pair="u/v") == []


def test_the_best_try_is_matched_with_the_worst() -> None:
    rewards = {"a": 1.0, "b": 0.0, "c": 0.6, "d": 0.5, "e": 0.2}
    assert match_tries(rewards, min_gap=0.1) == [("a", "b"), ("c", "e")]
    assert match_tries(rewards, min_gap=0.5) == [("a", "b")]
    assert match_tries({"a": 0.5, "b": 0.5}, min_gap=0.1) == []
    assert match_tries({"a": 0.5}, min_gap=0.1) == []
