"""What a run is told: the algorithm and its settings, checked when built. Pure; knows neither database nor trainer.

Every setting is used; one that a choice would ignore is refused. `choices` has what means something with what, and the
defaults; docs/recipes.md explains them.
"""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from apps.core.errors import InvalidInput, first_of
from apps.training.choices import (
    BY_GROUP_SCALE,
    CRITIC,
    HINDSIGHT,
    K1_REWARD,
    KTO,
    LEAST_OF_KTO,
    LOSSES,
    OWN_SETTINGS,
    POLICY_GRADIENT,
    REWARD_MODEL,
    WHITENED,
    default_settings,
)
from apps.training.resources import ResourceConfig


class RecipeConfig(ResourceConfig):
    """How a run learns and from what, and how it is run."""

    algorithm: Literal["policy_gradient", "hindsight", "sft", "preference", "unpaired", "reward_model"] = Field(
        default="policy_gradient",
        description="policy_gradient: from the rewards of fresh answers. hindsight: from hints, comments and "
        "corrections of fresh answers, word by word. The others learn from labels of any age. sft: "
        "to speak as accepted and corrected answers do. preference: from better and worse tries at one prompt, and "
        "from corrections. unpaired: from single verdicts, good or bad. reward_model: a model that judges, from pairs.",
    )
    estimator: (
        Literal["ema", "batch", "reinforce_pp", "reinforce_pp_baseline", "rloo", "grpo", "dr_grpo", "maxrl", "gae"]
        | None
    ) = Field(
        default=None,
        description="What a reward is compared with. ema (the usual one), batch and reinforce_pp suit live traffic, "
        "where every prompt occurs once; gae too, with a critic that learns what to expect of each step; the others "
        "compare the tries at one prompt.",
    )
    gae_lambda: float | None = Field(
        default=None, ge=0, le=1, description="With gae: 0 trusts the critic's next word alone, 1 what came in the end."
    )
    value_coefficient: float | None = Field(default=None, gt=0, le=10, description="What the critic's loss weighs.")
    value_clip: float | None = Field(default=None, gt=0, le=10, description="How far a value moves in one step.")
    credit: Literal["trajectory", "step"] | None = Field(
        default=None,
        description="What a reward is given to: all steps of its trajectory alike (the usual one), or each step by "
        "what came of it.",
    )
    turn_discount: float | None = Field(
        default=None, gt=0, le=1, description="With credit by step: what a reward is worth one turn earlier."
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
    drop_without_signal: bool | None = Field(
        default=None, description="Leave out trajectories whose advantage is zero, so that they thin out no mean."
    )
    sft_weight: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="With policy_gradient: what imitating the corrections of a batch's answers weighs beside it.",
    )
    hint_weight: float | None = Field(
        default=None, gt=0, le=100, description="With hindsight: what a nat that the hint makes likelier weighs."
    )
    top_tokens: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="With hindsight: at each place compare so many of the tokens that the hint makes likeliest, and "
        "all the rest as one, instead of the sampled one alone: less chance in the gradient.",
    )
    reward_weight: float | None = Field(
        default=None, ge=0, le=100, description="With hindsight: what the reward, if there is one, weighs beside it."
    )
    good_above: float | None = Field(
        default=None, ge=-1, lt=1, description="With labels: answers whose reward is above this are accepted."
    )
    min_gap: float | None = Field(
        default=None, gt=0, le=2, description="With pairs: how far apart the rewards of two tries must be."
    )
    epochs: int | None = Field(
        default=None, ge=1, le=1000, description="With labels: how often a run goes over what it has."
    )
    loss: (
        Literal[
            "ppo",
            "dual_clip",
            "gspo",
            "cispo",
            "sapo",
            "dppo_tv",
            "cross_entropy",
            "dpo",
            "robust_dpo",
            "ipo",
            "kto",
            "apo_zero",
            "bco",
            "bradley_terry",
        ]
        | None
    ) = Field(
        default=None,
        description="What is made small. Unless chosen: ppo for policy_gradient, cross_entropy for sft, dpo for "
        "preference, kto for unpaired, bradley_terry for reward_model.",
    )
    beta: float | None = Field(
        default=None, gt=0, le=10, description="With preferences: how dear it is to move away from the base model."
    )
    label_noise: float | None = Field(
        default=None, ge=0, lt=0.5, description="With robust_dpo: the share of preferences that are wrong."
    )
    good_weight: float | None = Field(default=None, ge=0, le=100, description="What a good verdict weighs.")
    bad_weight: float | None = Field(default=None, ge=0, le=100, description="What a bad verdict weighs.")
    clip_low: float | None = Field(default=None, gt=0, lt=1, description="How far below 1 a ratio has a gradient.")
    clip_high: float | None = Field(default=None, gt=0, le=10, description="How far above 1 a ratio has a gradient.")
    dual_clip: float | None = Field(default=None, gt=1, le=100, description="With dual_clip: the ceiling where A < 0.")
    ratio_cap: float | None = Field(default=None, gt=0, le=100, description="With cispo: the largest weight.")
    tau_positive: float | None = Field(default=None, gt=0, le=100, description="With sapo: steepness where A > 0.")
    tau_negative: float | None = Field(default=None, gt=0, le=100, description="With sapo: steepness where A < 0.")
    divergence_cap: float | None = Field(
        default=None, gt=0, le=1, description="With dppo_tv: how far a token's probability may move."
    )
    aggregation: Literal["token_mean", "sequence_mean", "rollout_mean", "constant"] | None = Field(
        default=None, description="What counts alike in a mean: every token, unless chosen."
    )
    constant_tokens: int | None = Field(
        default=None, ge=1, le=2**20, description="With constant: each answer counts as if it were so long."
    )
    correction: (
        Literal["none", "decoupled", "tis", "tis_sequence", "icepop", "mis", "geometric", "negative_mask"] | None
    ) = Field(
        default=None,
        description="What becomes of tokens that an older policy, or an engine that computes otherwise, sampled.",
    )
    weight_low: float | None = Field(default=None, gt=0, le=1, description="The smallest importance weight kept.")
    weight_high: float | None = Field(default=None, ge=1, le=1000, description="The largest importance weight.")
    drift_cap: float | None = Field(default=None, gt=0, le=100, description="With negative_mask: nats a token.")
    kl: Literal["none", "k1_reward", "k2_loss", "k3_loss"] | None = Field(
        default=None, description="Whether moving away from the base model costs, and how that is estimated."
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
    learning_rate: float | None = Field(
        default=None, gt=0, le=0.1, description="5e-4 for policy_gradient and sft, 1e-4 for the others, unless chosen."
    )
    max_grad_norm: float = Field(default=1.0, gt=0)
    max_staleness: int | None = Field(
        default=None, ge=0, le=1000, description="With policy_gradient: versions a step may lie behind."
    )
    wait_for_data_s: float = Field(default=600, gt=0, le=7 * 86_400, description="Without a batch for so long: fail.")
    promote: bool | None = Field(default=None, description="Each version that passes its check goes live.")
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def fill_own_settings(cls, data: Any) -> Any:
        """Give each choice its own settings where none are given; the algorithm's first, which chooses further."""
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value is not None}
        return default_settings(given) | given

    @model_validator(mode="after")
    def check_combination(self) -> Self:
        """Refuse settings that would be ignored or cannot be served."""
        self._check_resources_fit()
        if self.loss not in LOSSES[self.algorithm]:
            fitting = " or ".join(LOSSES[self.algorithm])
            raise ValueError(f"loss {self.loss} is none of the algorithm {self.algorithm}; choose {fitting}")
        for axis in OWN_SETTINGS:
            self._refuse_what_is_ignored(axis)
        self._check_overlong()
        self._check_credit()
        self._check_comparisons()
        self._check_distance()
        return self

    def _check_resources_fit(self) -> None:
        if self.algorithm == REWARD_MODEL and self.tuning != "lora":
            raise ValueError("a reward model is trained with the tuning lora only")
        if self.algorithm != POLICY_GRADIENT and self.keep_best == "reward_mean":
            raise ValueError("keep_best reward_mean has no effect without rewards; choose loss with this algorithm")

    def _check_overlong(self) -> None:
        if (self.overlong_tokens is None) != (self.overlong_window is None):
            raise ValueError("overlong_tokens and overlong_window have an effect only together")
        if self.overlong_tokens is None or self.overlong_window is None:
            return
        if self.overlong_window > self.overlong_tokens:
            raise ValueError("overlong_window must not be above overlong_tokens: an empty answer would cost something")
        if self.estimator == "maxrl":
            raise ValueError("overlong_tokens makes rewards negative, and maxrl is defined for others only")
        if self.estimator == CRITIC:
            raise ValueError("overlong_tokens has no effect with the estimator gae; leave it out, or choose ema")

    def _check_credit(self) -> None:
        if self.estimator == CRITIC and (self.credit != "step" or self.drop_without_signal):
            raise ValueError("gae gives each step its own credit, and knows no signal before the critic has spoken")

    def _check_comparisons(self) -> None:
        if self.loss == "dppo_tv" and self.correction not in {"none", "negative_mask"}:
            raise ValueError(f"correction {self.correction} would count twice: dppo_tv compares with the engine itself")
        if self.loss == KTO and self.minibatch_samples < LEAST_OF_KTO:
            raise ValueError(
                f"kto compares the answers of an optimizer step with each other's prompts: minibatch_samples must be "
                f"{LEAST_OF_KTO} or more; or choose apo_zero, which looks at one alone"
            )
        if self.group_size is not None and self.trajectories_per_step % self.group_size:
            raise ValueError(
                f"trajectories_per_step ({self.trajectories_per_step}) must be a multiple of group_size "
                f"({self.group_size}): a step takes whole groups"
            )

    def _check_distance(self) -> None:
        """A cost that is part of the reward is paid before the reward is divided by anything."""
        if self.kl != K1_REWARD:
            return
        if self.estimator in BY_GROUP_SCALE:
            raise ValueError(
                f"kl {K1_REWARD} is part of the reward, which {self.estimator} divides by its group's before a token's "
                "distance is known; choose k3_loss or k2_loss, or the estimator rloo"
            )
        if self.is_whitened_last and self.credit == "step":
            raise ValueError(
                f"kl {K1_REWARD} is paid before {self.estimator} divides by one spread of all tokens, and with credit "
                "by step each turn has its own; choose k2_loss, or credit trajectory"
            )

    def _refuse_what_is_ignored(self, axis: str) -> None:
        choices, chosen = OWN_SETTINGS[axis], getattr(self, axis)
        others = {name for settings in choices.values() for name in settings} - choices.get(chosen, {}).keys()
        for name in sorted(others):
            if getattr(self, name) is not None:
                fitting = [choice for choice, settings in choices.items() if name in settings]
                at = f"the {axis} {chosen}" if chosen is not None else f"the algorithm {self.algorithm}"
                raise ValueError(f"{name} has no effect with {at}; leave it out, or choose {' or '.join(fitting)}")

    @property
    def makes_versions(self) -> bool:
        """Say whether what it trains speaks: a reward model is no version of the policy."""
        return self.algorithm != REWARD_MODEL

    @property
    def is_whitened_last(self) -> bool:
        """Say whether the trainer divides advantages by their spread, the distance to the base model paid before."""
        return self.kl == K1_REWARD and self.estimator in WHITENED

    @property
    def learns_from_labels(self) -> bool:
        """Say whether it learns from labels of any age, rather than from fresh answers."""
        return self.algorithm not in {POLICY_GRADIENT, HINDSIGHT}

    def own(self, name: str) -> float:
        """Return a setting of the choices made. Raises ValueError if it is not one of theirs."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"{name} is no setting of this recipe")
        return float(value)


def read_recipe(data: dict[str, Any]) -> RecipeConfig:
    """Return the checked recipe; what is left out gets its default. Raises InvalidInput that names what is wrong."""
    try:
        return RecipeConfig.model_validate(data)
    except ValidationError as error:
        places = [(".".join(["recipe", *map(str, one["loc"])]), one["msg"]) for one in error.errors()]
        raise first_of([InvalidInput(f"{at}: {said}", field=at) for at, said in places]) from error
