"""Reward = a documented function of the labels. Pure: the same labels give the same reward, whenever it is computed.

- Only current labels (not superseded, not taken back) of the field `reward` count.
- For one target, the most trusted source that spoke decides alone: human, then end user, environment, judge, rule.
  Within that source it is the mean over all its labels.
- A trajectory's reward comes from labels on the trajectory itself; if it has none, it is the mean over its steps that
  have a reward. No label is no reward (None), never zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

REWARD_FIELD = "reward"
TRUST = ("human", "end_user", "environment", "judge", "rule")  # the first that spoke decides


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A current label as scoring sees it. `step_id` is None for the trajectory as a whole; `value` is -1 to 1."""

    source: str
    value: float
    step_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the labels of one target add up to, and from what."""

    reward: float
    source: str
    values: tuple[float, ...]
    n_outranked: int
    """Labels of less trusted sources, which do not count."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Rewards of a trajectory and its steps. `verdict` is None when the reward comes from the steps or from nothing."""

    reward: float | None
    step_rewards: Mapping[str, float]
    verdict: Verdict | None


def score_trajectory(judgements: Iterable[Judgement]) -> Score:
    """Return what the judgements add up to."""
    by_target: dict[str | None, list[Judgement]] = {}
    for judgement in judgements:
        by_target.setdefault(judgement.step_id, []).append(judgement)
    verdict = _decide(by_target.pop(None, []))
    verdicts = {step_id: _decide(group) for step_id, group in by_target.items() if step_id is not None}
    step_rewards = {step_id: found.reward for step_id, found in verdicts.items() if found is not None}
    if verdict is not None:
        return Score(reward=verdict.reward, step_rewards=step_rewards, verdict=verdict)
    reward = _mean(list(step_rewards.values())) if step_rewards else None
    return Score(reward=reward, step_rewards=step_rewards, verdict=None)


def _decide(judgements: Sequence[Judgement]) -> Verdict | None:
    if not judgements:
        return None
    source = min((judgement.source for judgement in judgements), key=TRUST.index)
    values = tuple(judgement.value for judgement in judgements if judgement.source == source)
    return Verdict(reward=_mean(values), source=source, values=values, n_outranked=len(judgements) - len(values))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def explain(score: Score) -> str:
    """Return the score in words for a person: "0.5 = mean of 2 human labels (1, 0); 1 label …"."""
    if score.reward is None:
        return "no reward yet: nobody has judged this"
    if score.verdict is None:
        n_steps = len(score.step_rewards)
        return f"{_figure(score.reward)} = mean of the rewards of {n_steps} {_plural('step', n_steps)}"
    return explain_verdict(score.verdict)


def explain_verdict(verdict: Verdict) -> str:
    """Return one target's verdict in words."""
    source = verdict.source.replace("_", " ")
    if len(verdict.values) == 1:
        words = f"{_figure(verdict.reward)}, from one {source} label"
    else:
        listed = ", ".join(_figure(value) for value in verdict.values[:5]) + (", …" if len(verdict.values) > 5 else "")
        words = f"{_figure(verdict.reward)} = mean of {len(verdict.values)} {source} labels ({listed})"
    if verdict.n_outranked:
        n = verdict.n_outranked
        words += f"; {n} {_plural('label', n)} of less trusted sources {'does' if n == 1 else 'do'} not count"
    return words


def _figure(value: float) -> str:
    return f"{value:.3g}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
