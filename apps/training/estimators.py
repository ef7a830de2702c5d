"""From rewards to advantages. Pure: standard library only, no database.

An advantage belongs to a trajectory and is the same for every step of it or, where credit is by step, to a turn among
the same turns of others: steps are not independent samples, and their number must not enter any baseline. A trajectory
without a reward never comes here: missing is not zero. docs/recipes.md says when to choose which; docs/sources.md names
the papers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from apps.training.recipes import RecipeConfig

ROUNDING = 1e-9  # smaller than any difference that rewards can mean
EPSILON = 1e-4  # TRL's, beside a group's standard deviation
MIN_VARIANCE = 1e-8  # of REINFORCE++'s reference implementation


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What an advantage is computed from.

    `group` names the prompt that several trajectories tried, `source` the agent that played; "" for none. `n_tokens`
    are the completion tokens that will be trained on, `longest` those of its longest answer.
    """

    trajectory_id: str
    reward: float
    group: str = ""
    source: str = ""
    n_tokens: int = 1
    longest: int = 0


@dataclass(frozen=True, kw_only=True)
class SourceMean:
    """The mean of one agent's rewards, and how many it is of."""

    mean: float
    n: int


@dataclass(frozen=True, kw_only=True)
class BaselineState:
    """The moving means of rewards between batches: the project's (None before the first batch) and each agent's."""

    mean: float | None = None
    sources: Mapping[str, SourceMean] = field(default_factory=dict)
    turns: Mapping[str, "BaselineState"] = field(default_factory=dict)
    """Where credit is by step: the same of each turn's returns, by its number."""

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> "BaselineState":
        """Read what `dataclasses.asdict` made."""
        sources = {name: SourceMean(**known) for name, known in data.get("sources", {}).items()}
        turns = {turn: cls.of_json(known) for turn, known in data.get("turns", {}).items()}
        return cls(mean=data.get("mean"), sources=sources, turns=turns)


def compute_advantages(
    scored: Sequence[Scored], *, recipe: RecipeConfig, baseline: BaselineState
) -> tuple[dict[str, float], BaselineState]:
    """Return each trajectory's advantage by its id, and the state for the next batch. Order matters to the moving mean.

    Raises ValueError for a reward that is not finite.
    """
    if not all(math.isfinite(item.reward) for item in scored):
        raise ValueError("every reward must be a finite number")
    if not scored:
        return {}, baseline
    rewards = [item.reward + overlong_penalty(item.longest, recipe=recipe) for item in scored]
    estimators = CENTERED if recipe.is_whitened_last else ESTIMATORS
    if (estimate := estimators.get(recipe.estimator or "")) is not None:
        return _settle(scored, estimate(scored, rewards), baseline)
    return _settle(scored, *_against_moving_mean(scored, rewards, recipe=recipe, state=baseline))


def compute_turn_advantages(
    turns: Mapping[int, Sequence[Scored]], *, recipe: RecipeConfig, baseline: BaselineState
) -> tuple[dict[tuple[int, str], float], BaselineState]:
    """Return the advantages of turns by (number, trajectory id), and the state for the next batch.

    A turn's return is compared with those of the same turn of other trajectories: so steps are never taken for samples
    of one kind, and what all trajectories do alike has no advantage on any turn.
    """
    advantages: dict[tuple[int, str], float] = {}
    states = dict(baseline.turns)
    for turn in sorted(turns):
        known = states.get(str(turn), BaselineState())
        found, states[str(turn)] = compute_advantages(turns[turn], recipe=recipe, baseline=known)
        advantages |= {(turn, trajectory_id): advantage for trajectory_id, advantage in found.items()}
    return advantages, replace(baseline, turns=states)


def _settle(
    scored: Sequence[Scored], advantages: Sequence[float], state: BaselineState
) -> tuple[dict[str, float], BaselineState]:
    """Take what is only rounding for zero: an optimizer that normalises would blow it up to a full step."""
    by_id = {
        item.trajectory_id: 0.0 if abs(advantage) < ROUNDING else advantage
        for item, advantage in zip(scored, advantages, strict=True)
    }
    return by_id, state


def overlong_penalty(longest: int, *, recipe: RecipeConfig) -> float:
    """Return 0 up to `overlong_tokens - overlong_window`, then falling to -1 at `overlong_tokens`, and no lower.

    DAPO, arXiv 2503.14476, eq. 13.
    """
    if recipe.overlong_tokens is None or recipe.overlong_window is None:
        return 0.0
    excess = longest - (recipe.overlong_tokens - recipe.overlong_window)
    return -min(1.0, max(0.0, excess / recipe.overlong_window))


def _against_moving_mean(
    scored: Sequence[Scored], rewards: Sequence[float], *, recipe: RecipeConfig, state: BaselineState
) -> tuple[list[float], BaselineState]:
    """REINFORCE with a moving mean (RAE of SPIRAL, arXiv 2506.24119): A = R - b, then b <- d b + (1 - d) R.

    Scored before the update, so no reward is part of its own baseline; except in the very first batch, whose mean is
    where the baseline starts: from zero, everything would look good at first. An agent with a mean of its own is
    compared with that, drawn to the project's as far as it rests on few rewards: b = (n m + n0 m_project) / (n + n0),
    the posterior mean of a normal prior worth n0 rewards.
    """
    decay, prior = recipe.own("ema_decay"), recipe.own("ema_prior")
    is_first, mean = state.mean is None, fmean(rewards) if state.mean is None else state.mean
    sources = dict(state.sources)
    advantages = []
    for item, reward in zip(scored, rewards, strict=True):
        known = sources.get(item.source, SourceMean(mean=mean, n=0))
        shrunk = mean if is_first else _shrink(known, mean, decay=decay, prior=prior)
        advantages.append(reward - shrunk)
        sources[item.source] = _move(known, reward, decay=decay)
        if not is_first:
            mean += (1 - decay) * (reward - mean)
    return advantages, BaselineState(mean=mean, sources=sources)


def _shrink(known: SourceMean, project_mean: float, *, decay: float, prior: float) -> float:
    n_counting = min(known.n, 1 / (1 - decay))  # a moving mean rests on no more rewards than it remembers
    if n_counting + prior == 0:
        return project_mean
    return (n_counting * known.mean + prior * project_mean) / (n_counting + prior)


def _move(known: SourceMean, reward: float, *, decay: float) -> SourceMean:
    """A plain mean of the first rewards, a moving one from then on."""
    share = max(1 - decay, 1 / (known.n + 1))
    return SourceMean(mean=known.mean + share * (reward - known.mean), n=known.n + 1)


def _against_batch(_scored: Sequence[Scored], rewards: Sequence[float]) -> list[float]:
    """A = R minus the mean of the batch."""
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def _center_tokens(scored: Sequence[Scored], values: Sequence[float]) -> list[float]:
    """A minus its mean over all tokens of the batch."""
    n_tokens = max(1, sum(item.n_tokens for item in scored))
    mean = sum(item.n_tokens * value for item, value in zip(scored, values, strict=True)) / n_tokens
    return [value - mean for value in values]


def _whiten(scored: Sequence[Scored], values: Sequence[float]) -> list[float]:
    """REINFORCE++ (arXiv 2501.03262), eq. 10: (A - mean) / std, over all tokens of the batch."""
    centered, n_tokens = _center_tokens(scored, values), max(1, sum(item.n_tokens for item in scored))
    spread = sum(item.n_tokens * value**2 for item, value in zip(scored, centered, strict=True)) / n_tokens
    return [value / math.sqrt(max(spread, MIN_VARIANCE)) for value in centered]


def _whiten_in_groups(scored: Sequence[Scored], rewards: Sequence[float]) -> list[float]:
    """REINFORCE++-baseline (the same paper): R minus the mean of its group, whitened over the batch."""
    return _whiten(scored, _in_groups(_center)(scored, rewards))


def _center(rewards: Sequence[float]) -> list[float]:
    """Dr.GRPO (arXiv 2503.20783): A = R - mean."""
    mean = fmean(rewards)
    return [reward - mean for reward in rewards]


def _leave_one_out(rewards: Sequence[float]) -> list[float]:
    """RLOO (arXiv 2402.14740): A = R minus the mean of the others at the same prompt = G / (G - 1) (R - mean).

    Unbiased, and without a division by the spread, which would give nearly equal rewards the most weight.
    """
    factor = len(rewards) / (len(rewards) - 1)
    return [factor * centered for centered in _center(rewards)]


def _standardise(rewards: Sequence[float]) -> list[float]:
    """GRPO (arXiv 2402.03300): A = (R - mean) / std."""
    spread = stdev(rewards) + EPSILON
    return [centered / spread for centered in _center(rewards)]


def _by_rate(rewards: Sequence[float]) -> list[float]:
    """MaxRL (arXiv 2602.02710): A = (R - mean) / mean for rewards of zero or more; where all are zero, nothing."""
    mean = fmean(rewards)
    return [(reward - mean) / mean if mean > 0 else 0.0 for reward in rewards]


def _in_groups(
    compare: Callable[[Sequence[float]], list[float]],
) -> Callable[[Sequence[Scored], Sequence[float]], list[float]]:
    """Compare the tries at each prompt. Alone at its prompt, a trajectory has nothing to compare with: exactly 0."""

    def estimate(scored: Sequence[Scored], rewards: Sequence[float]) -> list[float]:
        groups: dict[str, list[int]] = defaultdict(list)
        for place, item in enumerate(scored):
            groups[item.group or f"alone/{item.trajectory_id}"].append(place)
        advantages = [0.0] * len(scored)
        for places in groups.values():
            if len(places) > 1:
                compared = compare([rewards[place] for place in places])
                for place, advantage in zip(places, compared, strict=True):
                    advantages[place] = advantage
        return advantages

    return estimate


ESTIMATORS: Mapping[str, Callable[[Sequence[Scored], Sequence[float]], list[float]]] = {
    "batch": _against_batch,
    "reinforce_pp": _whiten,
    "reinforce_pp_baseline": _whiten_in_groups,
    "rloo": _in_groups(_leave_one_out),
    "grpo": _in_groups(_standardise),
    "dr_grpo": _in_groups(_center),
    "maxrl": _in_groups(_by_rate),
}
CENTERED: Mapping[str, Callable[[Sequence[Scored], Sequence[float]], list[float]]] = {
    "reinforce_pp": _center_tokens,
    "reinforce_pp_baseline": _in_groups(_center),
}  # what the trainer divides by its spread, where the distance to the base model is paid before


def are_all_zero(advantages: Iterable[float]) -> bool:
    """Return whether training on these would change nothing."""
    return not any(advantages)
