"""From rewards to advantages, and which steps may carry a gradient. Pure: standard library only, no database.

An advantage belongs to a trajectory and is the same for every step of it: steps are not independent samples, and their
number must not enter any baseline. A trajectory without a reward never comes here: missing is not zero.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from apps.training.recipes import RecipeConfig

ROUNDING = 1e-9  # smaller than any difference that rewards can mean


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What an advantage is computed from. `group` names the prompt that several trajectories tried, "" for none."""

    trajectory_id: str
    reward: float
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class BaselineState:
    """The moving mean of rewards between batches; None before the first batch. Groups need no memory."""

    mean: float | None = None


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
    if recipe.estimator == "group":
        return _leave_one_out(scored), baseline
    return _against_moving_mean(scored, mean=baseline.mean, decay=recipe.required_ema_decay)


def _against_moving_mean(
    scored: Sequence[Scored], *, mean: float | None, decay: float
) -> tuple[dict[str, float], BaselineState]:
    """REINFORCE with a moving mean (RAE of SPIRAL, arXiv 2506.24119): A = R - b, then b <- d b + (1 - d) R.

    Scored before the update, so no reward is part of its own baseline; except in the very first batch, whose mean is
    where the baseline starts: from zero, everything would look good at first.
    """
    if mean is None:
        mean = fmean(item.reward for item in scored)
        return {item.trajectory_id: _settle(item.reward - mean) for item in scored}, BaselineState(mean=mean)
    advantages = {}
    for item in scored:
        advantages[item.trajectory_id] = _settle(item.reward - mean)
        mean += (1 - decay) * (item.reward - mean)
    return advantages, BaselineState(mean=mean)


def _leave_one_out(scored: Sequence[Scored]) -> dict[str, float]:
    """RLOO (arXiv 2402.14740): A = R minus the mean of the others at the same prompt = G / (G - 1) (R - mean).

    Unbiased, and without a division by the spread, which would give nearly equal rewards the most weight. Alone at its
    prompt, a trajectory has nothing to compare with: exactly 0.
    """
    groups: dict[str, list[Scored]] = defaultdict(list)
    for item in scored:
        groups[item.group or f"alone/{item.trajectory_id}"].append(item)
    advantages = {item.trajectory_id: 0.0 for item in scored}
    for members in groups.values():
        mean, n_members = fmean(item.reward for item in members), len(members)
        if n_members > 1:
            factor = n_members / (n_members - 1)
            advantages |= {item.trajectory_id: _settle(factor * (item.reward - mean)) for item in members}
    return advantages


def _settle(advantage: float) -> float:
    """Take what is only rounding for zero: an optimizer that normalises would blow it up to a full step."""
    return 0.0 if abs(advantage) < ROUNDING else advantage


def are_all_zero(advantages: Iterable[float]) -> bool:
    """Return whether training on these would change nothing."""
    return not any(advantages)


class DiscardReason(StrEnum):
    """Why a step is not trained on, in the order in which it is looked for; `value` is for people to read."""

    INCOMPLETE = "its trajectory is not complete"
    NO_REWARD = "its trajectory has no reward"
    EXCLUDED = "kept out by a person"
    SIDE_CALL = "a call beside the conversation"
    ALREADY_TRAINED = "trained on before"
    TEXT_ONLY = "its exact tokens are not known"
    EMPTY = "its completion is empty"
    GREEDY = "sampled at temperature 0: it has no probability to compare with"
    CUT_SAMPLING = "sampled with top_p or top_k: its log-probs are not those of the policy"
    STALE = "spoken by a version that is too old"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What decides whether a step can be trained on. `staleness` counts versions; None: of another line."""

    is_complete: bool
    reward: float | None
    is_excluded: bool
    is_side_call: bool
    is_already_trained: bool
    is_text_only: bool
    n_completion_tokens: int
    temperature: float
    top_p: float
    top_k: int
    staleness: int | None


def discard_reason(facts: StepFacts, *, max_staleness: int) -> DiscardReason | None:
    """Return the first reason to leave the step out, None to train on it. `top_k` 0 or below means off."""
    is_stale = facts.staleness is None or facts.staleness > max_staleness
    checks = {
        DiscardReason.INCOMPLETE: not facts.is_complete,
        DiscardReason.NO_REWARD: facts.reward is None,
        DiscardReason.EXCLUDED: facts.is_excluded,
        DiscardReason.SIDE_CALL: facts.is_side_call,
        DiscardReason.ALREADY_TRAINED: facts.is_already_trained,
        DiscardReason.TEXT_ONLY: facts.is_text_only,
        DiscardReason.EMPTY: facts.n_completion_tokens == 0,
        DiscardReason.GREEDY: facts.temperature <= 0,
        DiscardReason.CUT_SAMPLING: facts.top_p < 1 or facts.top_k > 0,
        DiscardReason.STALE: is_stale,
    }
    return next((reason for reason, applies in checks.items() if applies), None)
