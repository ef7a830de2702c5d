"""What a run may use of its machines, how much of it is kept, and how patient its supervision is. Pure.

The part of a recipe that changes nothing about what is learnt.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM can serve
ADAPTER = {"lora_rank": 8, "lora_alpha": 16}
TUNING_SETTINGS: Mapping[str, Mapping[str, int]] = {  # own ones, and their defaults
    "lora": {**ADAPTER, "keep_versions": 100},
    "qlora": {**ADAPTER, "keep_versions": 100},
    "full": {"keep_versions": 2},
}
OFFLOAD_STAGES = {"none": 0, "optimizer": 1, "parameters": 3}  # the ZeRO stage from which on DeepSpeed can do it


class ResourceConfig(BaseModel):
    """The settings of a recipe that say how it runs; `recipes.RecipeConfig` adds what it learns."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tuning: Literal["lora", "qlora", "full"] = Field(
        default="lora",
        description="What learns: an adapter, the same over a base in four bits (needs a GPU), or every weight "
        "(engines then hold one version at a time).",
    )
    lora_rank: int | None = Field(default=None, description=f"With an adapter: one of {LORA_RANKS}; 8 unless chosen.")
    lora_alpha: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="With an adapter: its update is scaled by alpha / rank; 16 unless chosen.",
    )
    zero_stage: int = Field(
        default=0, ge=0, le=3, description="DeepSpeed ZeRO: what processes share out. 1 optimizer, 2 gradients, 3 all."
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        default="none",
        description="What waits in the host's memory rather than the GPU's: the optimizer (from ZeRO 1 on), or the "
        "parameters too (ZeRO 3).",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="Compute activations again rather than keep them: a third slower, far less memory."
    )
    n_hosts: int = Field(
        default=1, ge=1, le=64, description="Hosts that train together; they stand in CLAW_TRAIN_HOSTFILE."
    )
    n_processes: int = Field(default=1, ge=1, le=64, description="Trainer processes on each host, one per device.")
    max_tokens_per_microbatch: int = Field(
        default=2048, ge=64, le=2**20, description="What goes through the model at once; what calls share counts once."
    )
    keep_checkpoints: int = Field(default=2, ge=1, le=100, description="The newest so many stay on disk.")
    keep_best: Literal["none", "loss", "reward_mean"] = Field(
        default="none", description="The step that is best by this is kept as well: lowest loss, highest reward."
    )
    keep_versions: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="The newest so many keep their files, beside the best, what an alias names and what an engine "
        "holds: 100 unless chosen, 2 whole models.",
    )
    restarts: int = Field(
        default=1,
        ge=0,
        le=20,
        description="How often in a row a trainer that was killed or hangs is started again from its checkpoint.",
    )
    step_limit_s: float = Field(default=7200, ge=1, le=7 * 86_400, description="A step that takes longer is ended.")
    silence_limit_s: float = Field(
        default=900, ge=1, le=86_400, description="A trainer that shows no sign of work for so long hangs."
    )

    @model_validator(mode="before")
    @classmethod
    def fill_tuning(cls, data: Any) -> Any:
        """Give the tuning its own settings where none are given."""
        if not isinstance(data, dict):
            return data
        own = TUNING_SETTINGS.get(str(data.get("tuning") or "lora"), {})
        return data | {name: value for name, value in own.items() if data.get(name) is None}

    @model_validator(mode="after")
    def check_resources(self) -> Self:
        """Refuse settings that would be ignored, that DeepSpeed cannot combine or engines cannot serve."""
        own = TUNING_SETTINGS[self.tuning]
        for name in sorted(ADAPTER.keys() - own.keys()):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} has no effect with the tuning {self.tuning}; leave it out, or choose lora")
        if self.lora_rank is not None and self.lora_rank not in LORA_RANKS:
            raise ValueError(f"lora_rank must be one of {LORA_RANKS}, not {self.lora_rank}: engines serve no other")
        if self.zero_stage < OFFLOAD_STAGES[self.offload]:
            raise ValueError(
                f"offload {self.offload} needs zero_stage {OFFLOAD_STAGES[self.offload]} or more, not {self.zero_stage}"
            )
        if self.tuning == "qlora" and self.zero_stage == 3:
            raise ValueError("zero_stage 3 cannot share out a base in four bits; use up to 2 with qlora")
        return self
