"""Which steps may carry a gradient, and why the others may not. Pure: standard library only, no database."""

from dataclasses import dataclass
from enum import StrEnum


class DiscardReason(StrEnum):
    """Why a step is not trained on, in the order in which it is looked for; `value` is for people to read."""

    INCOMPLETE = "its trajectory is not complete"
    NO_REWARD = "its trajectory has no reward"
    EXCLUDED = "kept out by a person"
    SIDE_CALL = "a call beside the conversation"
    ALREADY_TRAINED = "trained on before"
    TEXT_ONLY = "its exact tokens are not known"
    CONSTRAINED = "sampled under a grammar, a bias or a penalty: its log-probs are not those of the policy"
    EMPTY = "its completion is empty"
    GREEDY = "sampled at temperature 0: it has no probability to compare with"
    CUT_SAMPLING = "sampled with top_p or top_k: its log-probs are not those of the policy"
    STALE = "spoken by a version that is too old"
    CUT_OFF = "its answer was cut off at the token limit"
    NO_SIGNAL = "its reward equals its baseline"
    NOT_ACCEPTED = "its reward is not above the bound, and nobody corrected it"
    UNPAIRED = "nothing to compare it with"


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What decides whether a step can be trained on. `staleness` counts versions; None: of another line."""

    is_complete: bool
    reward: float | None
    is_excluded: bool
    is_side_call: bool
    is_already_trained: bool
    is_text_only: bool
    is_constrained: bool
    n_completion_tokens: int
    temperature: float
    top_p: float
    top_k: int
    staleness: int | None
    is_cut_off: bool


def discard_reason(facts: StepFacts, *, max_staleness: int, drops_cut_off: bool) -> DiscardReason | None:
    """Return the first reason to leave the step out, None to train on it. `top_k` 0 or below means off."""
    is_stale = facts.staleness is None or facts.staleness > max_staleness
    checks = {
        DiscardReason.INCOMPLETE: not facts.is_complete,
        DiscardReason.NO_REWARD: facts.reward is None,
        DiscardReason.EXCLUDED: facts.is_excluded,
        DiscardReason.SIDE_CALL: facts.is_side_call,
        DiscardReason.ALREADY_TRAINED: facts.is_already_trained,
        DiscardReason.TEXT_ONLY: facts.is_text_only,
        DiscardReason.CONSTRAINED: facts.is_constrained,
        DiscardReason.EMPTY: facts.n_completion_tokens == 0,
        DiscardReason.GREEDY: facts.temperature <= 0,
        DiscardReason.CUT_SAMPLING: facts.top_p < 1 or facts.top_k > 0,
        DiscardReason.STALE: is_stale,
        DiscardReason.CUT_OFF: drops_cut_off and facts.is_cut_off,
    }
    return next((reason for reason, applies in checks.items() if applies), None)


def label_discard_reason(facts: StepFacts, *, drops_cut_off: bool) -> DiscardReason | None:
    """Return the first reason not to learn from labels on the step: how and by whom it was sampled is none."""
    checks = {
        DiscardReason.INCOMPLETE: not facts.is_complete,
        DiscardReason.EXCLUDED: facts.is_excluded,
        DiscardReason.SIDE_CALL: facts.is_side_call,
        DiscardReason.EMPTY: facts.n_completion_tokens == 0 and not facts.is_text_only,
        DiscardReason.CUT_OFF: drops_cut_off and facts.is_cut_off,
    }
    return next((reason for reason, applies in checks.items() if applies), None)
