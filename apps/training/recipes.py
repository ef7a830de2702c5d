"""What a run is told: the algorithm and its settings, checked when built. Pure; knows neither database nor trainer.

Every setting is used; one that a choice would ignore is refused. The defaults took a small real task from failing to
solved on two CPU cores; a choice's own settings default to its paper's numbers. docs/recipes.md explains them.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from apps.core.errors import InvalidInput
from apps.training.resources import ResourceConfig

GROUPS = {"group_size": 4}

# Choice by choice, the settings that mean something with it and their defaults.
OWN_SETTINGS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "estimator": {
        "ema": {"ema_decay": 0.95, "ema_prior": 16},
        "batch": {},
        "reinforce_pp": {},
        "reinforce_pp_baseline": GROUPS,
        "rloo": GROUPS,
        "grpo": GROUPS,
        "dr_grpo": GROUPS,
        "maxrl": GROUPS,
    },
    "loss": {
        "ppo": {"clip_low": 0.2, "clip_high": 0.28},
        "dual_clip": {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
        "gspo": {"clip_low": 3e-4, "clip_high": 4e-4},
        "cispo": {"ratio_cap": 5.0},
        "sapo": {"tau_positive": 1.0, "tau_negative": 1.05},
        "dppo_tv": {"divergence_cap": 0.2},
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
        "k1_reward": {"kl_coefficient": 0.01},
        "k2_loss": {"kl_coefficient": 0.01},
        "k3_loss": {"kl_coefficient": 0.01},
    },
}


class RecipeConfig(ResourceConfig):
    """Policy gradient on fresh rewarded trajectories, and how the run is run."""

    algorithm: Literal["policy_gradient"] = "policy_gradient"
    estimator: Literal["ema", "batch", "reinforce_pp", "reinforce_pp_baseline", "rloo", "grpo", "dr_grpo", "maxrl"] = (
        Field(
            default="ema",
            description="What a reward is compared with. ema, batch and reinforce_pp suit live traffic, where every "
            "prompt occurs once; the others compare the tries at one prompt.",
        )
    )
    ema_decay: float | None = Field(
        default=None, ge=0, lt=1, description="With ema: how much of the mean stays after each trajectory."
    )
    ema_prior: int | None = Field(
        default=None,
        ge=0,
        le=10_000,
        description="With ema: how many rewards of an agent's own weigh as much as the project's mean.",
    )
    group_size: int | None = Field(default=None, ge=2, le=64, description="With groups: tries at one prompt.")
    overlong_tokens: int | None = Field(
        default=None, ge=1, le=2**20, description="An answer of so many tokens costs its trajectory a reward of 1."
    )
    overlong_window: int | None = Field(
        default=None, ge=1, le=2**20, description="So many tokens before that the cost begins, and grows evenly."
    )
    drop_cut_off: bool = Field(default=False, description="Leave out answers that were cut off at the token limit.")
    drop_without_signal: bool = Field(
        default=True, description="Leave out trajectories whose advantage is zero, so that they thin out no mean."
    )
    loss: Literal["ppo", "dual_clip", "gspo", "cispo", "sapo", "dppo_tv"] = "ppo"
    clip_low: float | None = Field(default=None, gt=0, lt=1, description="How far below 1 a ratio has a gradient.")
    clip_high: float | None = Field(default=None, gt=0, le=10, description="How far above 1 a ratio has a gradient.")
    dual_clip: float | None = Field(default=None, gt=1, le=100, description="With dual_clip: the ceiling where A < 0.")
    ratio_cap: float | None = Field(default=None, gt=0, le=100, description="With cispo: the largest weight.")
    tau_positive: float | None = Field(default=None, gt=0, le=100, description="With sapo: steepness where A > 0.")
    tau_negative: float | None = Field(default=None, gt=0, le=100, description="With sapo: steepness where A < 0.")
    divergence_cap: float | None = Field(
        default=None, gt=0, le=1, description="With dppo_tv: how far a token's probability may move."
    )
    aggregation: Literal["token_mean", "sequence_mean", "rollout_mean", "constant"] = "token_mean"
    constant_tokens: int | None = Field(
        default=None, ge=1, le=2**20, description="With constant: each answer counts as if it were so long."
    )
    correction: Literal["none", "decoupled", "tis", "tis_sequence", "icepop", "mis", "geometric", "negative_mask"] = (
        Field(
            default="none",
            description="What becomes of tokens that an older policy, or an engine that computes otherwise, sampled.",
        )
    )
    weight_low: float | None = Field(default=None, gt=0, le=1, description="The smallest importance weight kept.")
    weight_high: float | None = Field(default=None, ge=1, le=1000, description="The largest importance weight.")
    drift_cap: float | None = Field(default=None, gt=0, le=100, description="With negative_mask: nats a token.")
    kl: Literal["none", "k1_reward", "k2_loss", "k3_loss"] = Field(
        default="none", description="Whether moving away from the base model costs, and how that is estimated."
    )
    kl_coefficient: float | None = Field(default=None, gt=0, le=10)
    min_ess: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Below this effective sample size (a fraction) an optimizer step is shortened in proportion.",
    )
    n_steps: int = Field(default=8, ge=1, le=10_000, description="Batches to train on; each makes a version.")
    trajectories_per_step: int = Field(default=48, ge=1, le=4096)
    minibatch_samples: int = Field(
        default=16, ge=1, le=4096, description="Model calls in one optimizer step, about: trajectories stay whole."
    )
    learning_rate: float = Field(default=5e-4, gt=0, le=0.1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_staleness: int = Field(default=4, ge=0, le=1000, description="Versions a step may lie behind.")
    wait_for_data_s: float = Field(default=600, gt=0, le=7 * 86_400, description="Without a batch for so long: fail.")
    promote: bool = Field(default=True, description="Each version that passes its check goes live.")
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def fill_own_settings(cls, data: Any) -> Any:
        """Give each choice its own settings where none are given."""
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        for axis, choices in OWN_SETTINGS.items():
            chosen = data.get(axis, cls.model_fields[axis].default)
            own = choices.get(chosen, {}) if isinstance(chosen, str) else {}
            filled |= {name: value for name, value in own.items() if data.get(name) is None}
        return filled

    @model_validator(mode="after")
    def check_combination(self) -> Self:
        """Refuse settings that would be ignored or cannot be served."""
        for axis in OWN_SETTINGS:
            self._refuse_what_is_ignored(axis)
        if (self.overlong_tokens is None) != (self.overlong_window is None):
            raise ValueError("overlong_tokens and overlong_window have an effect only together")
        if self.estimator == "maxrl" and self.overlong_tokens is not None:
            raise ValueError("overlong_tokens makes rewards negative, and maxrl is defined for others only")
        if self.loss == "dppo_tv" and self.correction not in {"none", "negative_mask"}:
            raise ValueError(f"correction {self.correction} would count twice: dppo_tv compares with the engine itself")
        if self.group_size is not None and self.trajectories_per_step % self.group_size:
            raise ValueError(
                f"trajectories_per_step ({self.trajectories_per_step}) must be a multiple of group_size "
                f"({self.group_size}): a step takes whole groups"
            )
        return self

    def _refuse_what_is_ignored(self, axis: str) -> None:
        choices, chosen = OWN_SETTINGS[axis], getattr(self, axis)
        others = {name for settings in choices.values() for name in settings} - choices[chosen].keys()
        for name in sorted(others):
            if getattr(self, name) is not None:
                fitting = [choice for choice, settings in choices.items() if name in settings]
                raise ValueError(
                    f"{name} has no effect with the {axis} {chosen}; leave it out, or choose {' or '.join(fitting)}"
                )

    def own(self, name: str) -> float:
        """Return a setting of the choices made. Raises ValueError if it is not one of theirs."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} is no setting of this recipe")
        return float(value)


def read_recipe(data: dict[str, Any]) -> RecipeConfig:
    """Return the checked recipe; what is left out gets its default. Raises InvalidInput that names the setting."""
    try:
        return RecipeConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["recipe", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {first['msg']}", field=field) from error
