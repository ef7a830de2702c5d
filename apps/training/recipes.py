"""What a run is told: the algorithm and its settings, checked when built. Pure; knows neither database nor trainer.

Every setting is used; one that the chosen estimator would ignore is refused. Defaults are those that took a small real
task from failing to solved on two CPU cores.
"""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apps.core.errors import InvalidInput

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM can serve
DEFAULT_EMA_DECAY = 0.95
DEFAULT_GROUP_SIZE = 4


class RecipeConfig(BaseModel):
    """Clipped policy gradient on fresh rewarded trajectories, LoRA on every linear layer."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algorithm: Literal["policy_gradient"] = "policy_gradient"
    estimator: Literal["ema", "group"] = Field(
        default="ema",
        description="What a reward is compared with: ema, the moving mean, for live traffic where every prompt occurs "
        "once; group, the other tries at the same prompt.",
    )
    ema_decay: float | None = Field(
        default=None, ge=0, lt=1, description="With ema: how much of the mean stays after each trajectory."
    )
    group_size: int | None = Field(default=None, ge=2, le=64, description="With group: tries at one prompt.")
    n_steps: int = Field(default=8, ge=1, le=10_000, description="Batches to train on; each makes a version.")
    trajectories_per_step: int = Field(default=48, ge=1, le=4096)
    minibatch_samples: int = Field(default=16, ge=1, le=4096, description="Model calls in one optimizer step.")
    learning_rate: float = Field(default=5e-4, gt=0, le=0.1)
    max_grad_norm: float = Field(default=1.0, gt=0)
    lora_rank: int = Field(default=8, description=f"One of {LORA_RANKS}.")
    lora_alpha: int = Field(default=16, ge=1, le=1024, description="The update is scaled by alpha / rank.")
    clip_low: float = Field(default=0.2, gt=0, lt=1, description="How far below 1 a ratio still has a gradient.")
    clip_high: float = Field(default=0.28, gt=0, le=10, description="How far above 1 a ratio still has a gradient.")
    max_staleness: int = Field(default=4, ge=0, le=1000, description="Versions a step may lie behind.")
    wait_for_data_s: float = Field(default=600, gt=0, le=7 * 86_400, description="Without a batch for so long: fail.")
    promote: bool = Field(default=True, description="Each version that passes its check goes live.")
    zero_stage: int = Field(default=0, ge=0, le=3, description="DeepSpeed ZeRO stage.")
    n_processes: int = Field(default=1, ge=1, le=64, description="Trainer processes on each host, one per device.")
    max_tokens_per_microbatch: int = Field(
        default=2048, ge=64, le=2**20, description="What goes through the model at once."
    )
    seed: int = Field(default=0, ge=0, lt=2**31)

    @model_validator(mode="before")
    @classmethod
    def fill_estimator_setting(cls, data: Any) -> Any:
        """Give the chosen estimator its own setting where none is given."""
        if not isinstance(data, dict):
            return data
        name, value = (
            ("group_size", DEFAULT_GROUP_SIZE) if data.get("estimator") == "group" else ("ema_decay", DEFAULT_EMA_DECAY)
        )
        return data if data.get(name) is not None else {**data, name: value}

    @model_validator(mode="after")
    def check_combination(self) -> Self:
        """Refuse settings that would be ignored or cannot be served."""
        if self.estimator == "ema" and self.group_size is not None:
            raise ValueError("group_size has no effect with the estimator ema; leave it out, or choose group")
        if self.estimator == "group" and self.ema_decay is not None:
            raise ValueError("ema_decay has no effect with the estimator group; leave it out, or choose ema")
        if self.group_size is not None and self.trajectories_per_step % self.group_size:
            raise ValueError(
                f"trajectories_per_step ({self.trajectories_per_step}) must be a multiple of group_size "
                f"({self.group_size}): a step takes whole groups"
            )
        if self.lora_rank not in LORA_RANKS:
            raise ValueError(f"lora_rank must be one of {LORA_RANKS}, not {self.lora_rank}: engines serve no other")
        return self

    @property
    def required_ema_decay(self) -> float:
        """Return the decay of a recipe whose estimator is ema."""
        if self.ema_decay is None:
            raise ValueError(f"the estimator {self.estimator} has no decay")
        return self.ema_decay


def read_recipe(data: dict[str, Any]) -> RecipeConfig:
    """Return the checked recipe; what is left out gets its default. Raises InvalidInput that names the setting."""
    try:
        return RecipeConfig.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["recipe", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {first['msg']}", field=field) from error
