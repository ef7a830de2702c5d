"""From labels to what the trainer learns from them: accepted answers, good and bad ones, pairs. Pure: no database.

An answer with a reward of its own is judged by it, the others of its trajectory by the trajectory's. A corrected answer
is judged by its correction alone: it is what should not have been said.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from apps.core.contracts.labelled import Answer, Judged


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """An answer, and what a person wrote in its place."""

    original: Answer
    better: Answer


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A trajectory as its labels see it: its answers in order, but for those that were corrected."""

    trajectory_id: str
    reward: float | None
    answers: tuple[Answer, ...]
    step_rewards: Mapping[str, float] = field(default_factory=dict)
    corrected: tuple[Corrected, ...] = ()


def accept(tried: Tried, *, above: float) -> list[Judged]:
    """Return what is worth imitating: answers whose reward is above the bound, and corrections."""
    accepted = tuple(answer for answer in tried.answers if _is_above(_reward_of(answer, tried), above))
    kept = [_judged(tried, *accepted, is_good=True)] if accepted else []
    return kept + [_judged(tried, each.better, is_good=True) for each in tried.corrected]


def judge(tried: Tried, *, above: float) -> list[Judged]:
    """Return good and bad answers: those with a reward of their own one by one, the others together."""
    own = [answer for answer in tried.answers if answer.answer_id in tried.step_rewards]
    others = tuple(answer for answer in tried.answers if answer.answer_id not in tried.step_rewards)
    judged = [_judged(tried, answer, is_good=tried.step_rewards[answer.answer_id] > above) for answer in own]
    if others and tried.reward is not None:
        judged.append(_judged(tried, *others, is_good=tried.reward > above))
    for each in tried.corrected:
        judged += [_judged(tried, each.better, is_good=True), _judged(tried, each.original, is_good=False)]
    return judged


def compare_corrected(tried: Tried) -> list[Judged]:
    """Return each correction and what it corrects, as a pair."""
    return [
        _judged(tried, answer, is_good=is_good, pair=f"{tried.trajectory_id}/{number}")
        for number, each in enumerate(tried.corrected)
        for answer, is_good in ((each.better, True), (each.original, False))
    ]


def compare_answers(better: Answer, worse: Answer, *, trajectory_id: str, pair: str) -> list[Judged]:
    """Return two answers to one prompt as a pair."""
    return [
        Judged(trajectory_id=trajectory_id, answers=(answer,), is_good=answer is better, pair=pair)
        for answer in (better, worse)
    ]


def compare_tries(better: Tried, worse: Tried, *, pair: str) -> list[Judged]:
    """Return two tries at one prompt as a pair, each with what it really answered; [] where one has nothing left."""
    if not _given(better) or not _given(worse):
        return []
    return [_judged(tried, *_given(tried), is_good=tried is better, pair=pair) for tried in (better, worse)]


def _given(tried: Tried) -> tuple[Answer, ...]:
    return tried.answers + tuple(each.original for each in tried.corrected)


def match_tries(rewards: Mapping[str, float], *, min_gap: float) -> list[tuple[str, str]]:
    """Return pairs (better, worse) of tries at one prompt, by id; each try is in one pair at most.

    Best with worst, second best with second worst, and so on, as long as their rewards are `min_gap` apart.
    """
    ranked = sorted(rewards, key=lambda name: (rewards[name], name))
    n_pairs = len(ranked) // 2
    pairs = zip(ranked[::-1][:n_pairs], ranked[:n_pairs], strict=True)
    return [(better, worse) for better, worse in pairs if rewards[better] - rewards[worse] >= min_gap]


def _reward_of(answer: Answer, tried: Tried) -> float | None:
    return tried.step_rewards.get(answer.answer_id, tried.reward)


def _is_above(reward: float | None, bound: float) -> bool:
    """A missing reward is not zero: it is above nothing."""
    return reward is not None and reward > bound


def _judged(tried: Tried, *answers: Answer, is_good: bool, pair: str = "") -> Judged:
    return Judged(trajectory_id=tried.trajectory_id, answers=answers, is_good=is_good, pair=pair)
