"""What a run may use of its machines, how much of it is kept, and how patient its supervision is. Pure.

The part of a recipe that changes nothing about what is learnt.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ResourceConfig(BaseModel):
    """The settings of a recipe that say how it runs; `recipes.RecipeConfig` adds what it learns."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    zero_stage: int = Field(
        default=0, ge=0, le=3, description="DeepSpeed ZeRO: what processes share out. 1 optimizer, 2 gradients, 3 all."
    )
    n_processes: int = Field(default=1, ge=1, le=64, description="Trainer processes on each host, one per device.")
    max_tokens_per_microbatch: int = Field(
        default=2048, ge=64, le=2**20, description="What goes through the model at once; what calls share counts once."
    )
    keep_checkpoints: int = Field(default=2, ge=1, le=100, description="The newest so many stay on disk.")
    keep_best: Literal["none", "loss", "reward_mean"] = Field(
        default="none", description="The checkpoint that is best by this stays as well: lowest loss, highest reward."
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
