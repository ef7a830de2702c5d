"""What a recipe chooses between, what means something with each choice, and its default. Pure: tables only.

The defaults took a small real task from failing to solved on two CPU cores; a choice's own settings default to its
paper's numbers. docs/recipes.md explains them.
"""

from collections.abc import Mapping
from typing import Any

Default = float | str | None  # None: off
GROUPS = {"group_size": 4}
BETA = {"beta": 0.1}
POLICY_GRADIENT = "policy_gradient"
HINDSIGHT = "hindsight"
SFT = "sft"
PREFERENCE = "preference"
UNPAIRED = "unpaired"
REWARD_MODEL = "reward_model"
CRITIC = "gae"
WHITENED = ("reinforce_pp", "reinforce_pp_baseline")  # estimators that divide by the spread over the batch's tokens
BY_GROUP_SCALE = ("grpo", "maxrl")  # estimators that divide by what the rewards of a group are
K1_REWARD = "k1_reward"
KTO = "kto"
LEAST_OF_KTO = 3  # samples an optimizer step: near-equal parts of so many never leave one alone
PAIRED = (PREFERENCE, REWARD_MODEL)  # what learns from pairs
LABELS: Mapping[str, Default] = {"learning_rate": 1e-4, "epochs": 1, "promote": True}

# Axis by axis and choice by choice, the settings that mean something with it and their defaults. The algorithm comes
# first: the other axes are settings of its own.
OWN_SETTINGS: Mapping[str, Mapping[str, Mapping[str, Default]]] = {
    "algorithm": {
        POLICY_GRADIENT: {
            "estimator": "ema",
            "credit": "trajectory",
            "loss": "ppo",
            "aggregation": "token_mean",
            "correction": "none",
            "kl": "none",
            "overlong_tokens": None,
            "overlong_window": None,
            "min_ess": None,
            "sft_weight": None,
            "drop_without_signal": True,
            "max_staleness": 4,
            "learning_rate": 5e-4,
            "promote": True,
        },
        HINDSIGHT: {
            "loss": "ppo",
            "aggregation": "token_mean",
            "correction": "none",
            "kl": "none",
            "hint_weight": 1.0,
            "top_tokens": None,
            "reward_weight": 1.0,
            "max_staleness": 4,
            "learning_rate": 1e-4,
            "promote": True,
        },
        SFT: {
            **LABELS,
            "loss": "cross_entropy",
            "aggregation": "token_mean",
            "good_above": 0.5,
            "learning_rate": 5e-4,
        },
        PREFERENCE: {**LABELS, "loss": "dpo", "min_gap": 0.1},
        UNPAIRED: {**LABELS, "loss": "kto", "good_above": 0.5},
        REWARD_MODEL: {"loss": "bradley_terry", "min_gap": 0.1, "learning_rate": 1e-4, "epochs": 1},
    },
    "estimator": {
        "ema": {"ema_decay": 0.95, "ema_prior": 16},
        "batch": {},
        "reinforce_pp": {},
        "reinforce_pp_baseline": GROUPS,
        "rloo": GROUPS,
        "grpo": GROUPS,
        "dr_grpo": GROUPS,
        "maxrl": GROUPS,
        "gae": {"gae_lambda": 0.95, "value_coefficient": 0.5, "value_clip": 0.2},
    },
    "credit": {"trajectory": {}, "step": {"turn_discount": 1.0}},
    "loss": {
        "ppo": {"clip_low": 0.2, "clip_high": 0.28},
        "dual_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "cispo": {"ratio_cap": 5.0},
        "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
        "dppo_tv": {"divergence_cap": 0.2},
        "cross_entropy": {},
        "dpo": BETA,
        "robust_dpo": {**BETA, "label_noise": 0.1},
        "ipo": BETA,
        "kto": {**BETA, "good_weight": 1.0, "bad_weight": 1.0},
        "apo_zero": {**BETA, "good_weight": 1.0, "bad_weight": 1.0},
        "bco": {**BETA, "good_weight": 1.0, "bad_weight": 1.0},
        "bradley_terry": {},
    },
    "aggregation": {"token_mean": {}, "sequence_mean": {}, "rollout_mean": {}, "constant": {"constant_tokens": 1024}},
    "correction": {
        "none": {},
        "decoupled": {},
        "tis": {"weight_high": 2.0},
        "tis_sequence": {"weight_high": 2.0},
        "icepop": {"weight_low": 0.5, "weight_high": 5.0},
        "mis": {"weight_low": 0.5, "weight_high": 2.0},
        "geometric": {"weight_low": 0.99, "weight_high": 1.01},
        "negative_mask": {"drift_cap": 0.5},
    },
    "kl": {
        "none": {},
        K1_REWARD: {"kl_coefficient": 0.01},
        "k2_loss": {"kl_coefficient": 0.01},
        "k3_loss": {"kl_coefficient": 0.01},
    },
}
OWNED = frozenset(name for choices in OWN_SETTINGS.values() for own in choices.values() for name in own)
LOSSES: Mapping[str, tuple[str, ...]] = {
    POLICY_GRADIENT: ("ppo", "dual_clip", "gspo", "cispo", "sapo", "dppo_tv"),
    HINDSIGHT: ("ppo", "cispo", "dppo_tv"),
    SFT: ("cross_entropy",),
    PREFERENCE: ("dpo", "robust_dpo", "ipo"),
    UNPAIRED: ("kto", "apo_zero", "bco"),
    REWARD_MODEL: ("bradley_terry",),
}


def default_settings(chosen: Mapping[str, Any]) -> dict[str, Default]:
    """Return every setting that means something with the choices made and those that follow, with its default."""
    found: dict[str, Default] = {"algorithm": POLICY_GRADIENT}
    for axis, choices in OWN_SETTINGS.items():
        choice = chosen.get(axis) or found.get(axis)
        found |= choices.get(choice, {}) if isinstance(choice, str) else {}
        if axis == "estimator" and choice == CRITIC:
            found |= {"credit": "step", "drop_without_signal": False}
    return found
