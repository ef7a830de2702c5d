"""How much memory, disk and time a run will take, before it is launched. Pure: numbers in, numbers out, no torch.

Bytes are of one trainer process unless said otherwise; docs/training.md tells how far they were off in real runs.
Models are taken to be of the usual make: attention with four projections and an MLP with three, as Llama's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from apps.training.recipes import RecipeConfig

GIB = 2**30
WEIGHT, GRADIENT, MOMENTS, MASTER = 4, 4, 8, 4  # bytes a parameter: fp32 throughout (see worker/trainer/model.py)
FOUR_BITS = 0.56  # with the blocks' scales, twice quantised
RUNTIME = {"cpu": 750 * 2**20, "cuda": 1200 * 2**20}  # what torch, DeepSpeed and the GPU's context take by themselves
TOKEN_WIDTHS = 15  # of the hidden size: what one layer keeps of a token for the backward pass, beside the MLP
MLP_WIDTHS = 5  # of the MLP's size
LOGIT_COPIES = 4  # log-probs, their exponentials and gradients, fp32
N_GOING = 1  # versions that are not kept, but whose files have still to go
SHARE_OF_TARGETS = 0.5  # of a micro-batch's tokens that pass through the output layer


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What a base model's folder says of it. Sizes in units of one number. `n_output_parameters`: of the output layer,
    where it is a table of its own beside the input embeddings."""

    n_parameters: int
    n_layers: int
    hidden_size: int
    mlp_size: int
    query_size: int
    key_size: int
    vocab_size: int
    n_output_parameters: int = 0

    @property
    def layer_lora_width(self) -> int:
        """Inputs and outputs of a layer's seven linear maps: an adapter has `rank` times so many parameters."""
        attention = 2 * (self.hidden_size + self.query_size) + 2 * (self.hidden_size + self.key_size)
        return attention + 3 * (self.hidden_size + self.mlp_size)

    @property
    def n_embedding_parameters(self) -> int:
        """Those that no adapter and no quantisation touches."""
        return 2 * self.vocab_size * self.hidden_size


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the project's last runs measured."""

    tokens_per_s: float
    tokens_per_trajectory: float
    seconds_to_start: float = 0
    """From an attempt's start to its trainer's first step, data being there."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`device`: where a process computes, by part; `host`: in the host's memory beside it; bytes of one process.

    `disk`: of the whole run, at its end. Seconds, to the first step and of each, are None until a run of the project
    has been measured.
    """

    n_parameters: int
    n_trainable: int
    device: Mapping[str, int]
    host: int
    disk: int
    seconds_to_start: float | None
    seconds_per_step: float | None
    n_output_parameters: int = 0

    @property
    def device_total(self) -> int:
        return sum(self.device.values())

    @property
    def n_counted_once(self) -> int:
        """How many parameters there are if input and output embeddings count as one table."""
        return self.n_parameters - self.n_output_parameters


def estimate_run(shape: ModelShape, recipe: RecipeConfig, *, device: str, pace: Pace | None) -> Estimate:
    """Return what a run by this recipe will take on "cpu" or "cuda"."""
    n_trainable = count_trainable(shape, recipe)
    n_ranks = recipe.n_hosts * recipe.n_processes
    states = {
        "weights": _weights(shape, recipe, n_trainable=n_trainable) / (n_ranks if recipe.zero_stage == 3 else 1),
        "gradients": n_trainable * GRADIENT / (n_ranks if recipe.zero_stage >= 2 else 1),
        "optimizer": n_trainable * _optimizer(recipe) / (n_ranks if recipe.zero_stage >= 1 else 1),
    }
    away = {"none": (), "optimizer": ("optimizer",), "parameters": ("optimizer", "weights")}[recipe.offload]
    held = {name: round(size) for name, size in states.items() if name not in away}
    return Estimate(
        n_parameters=shape.n_parameters,
        n_trainable=n_trainable,
        device={
            **held,
            "activations": _activations(shape, recipe),
            "logits": round(recipe.max_tokens_per_microbatch * SHARE_OF_TARGETS * shape.vocab_size * 4 * LOGIT_COPIES),
            "reference": shape.n_parameters * WEIGHT if _has_reference(recipe) else 0,
            "runtime": RUNTIME[device],
        },
        host=round(sum(states[name] for name in away)),
        disk=_disk(shape, recipe, n_trainable=n_trainable, device=device),
        seconds_to_start=pace.seconds_to_start if pace else None,
        seconds_per_step=_seconds(recipe, pace) if pace else None,
        n_output_parameters=shape.n_output_parameters,
    )


def count_trainable(shape: ModelShape, recipe: RecipeConfig) -> int:
    """Return how many parameters learn."""
    if recipe.lora_rank is None:
        return shape.n_parameters
    return recipe.lora_rank * shape.n_layers * shape.layer_lora_width


def _weights(shape: ModelShape, recipe: RecipeConfig, *, n_trainable: int) -> float:
    if recipe.tuning == "full":
        return shape.n_parameters * WEIGHT
    if recipe.tuning == "lora":
        return (shape.n_parameters + n_trainable) * WEIGHT
    n_quantised = max(0, shape.n_parameters - shape.n_embedding_parameters)
    return n_quantised * FOUR_BITS + (shape.n_parameters - n_quantised + n_trainable) * WEIGHT


def _optimizer(recipe: RecipeConfig) -> int:
    """ZeRO keeps a flat copy of what it shares out."""
    return MOMENTS + (MASTER if recipe.zero_stage else 0)


def _activations(shape: ModelShape, recipe: RecipeConfig) -> int:
    """One layer's of a micro-batch, fp32; and each layer's, or each layer's input where they are computed again."""
    n_tokens = recipe.max_tokens_per_microbatch
    layer = n_tokens * 4 * (TOKEN_WIDTHS * shape.hidden_size + MLP_WIDTHS * shape.mlp_size)
    if recipe.gradient_checkpointing:
        return layer + n_tokens * 4 * shape.hidden_size * shape.n_layers
    return layer * shape.n_layers


def _has_reference(recipe: RecipeConfig) -> bool:
    """Without an adapter, the base that is compared with is a second model."""
    compares = recipe.algorithm in {"preference", "unpaired"} or recipe.kl not in {"none", None}
    return recipe.tuning == "full" and compares


def _disk(shape: ModelShape, recipe: RecipeConfig, *, n_trainable: int, device: str) -> int:
    n_checkpoints = recipe.keep_checkpoints + (recipe.keep_best != "none")
    checkpoint = n_trainable * (WEIGHT + _optimizer(recipe))
    version = (
        shape.n_parameters * (2 if device == "cuda" else WEIGHT) if recipe.tuning == "full" else n_trainable * WEIGHT
    )
    n_versions = min(recipe.n_steps, int(recipe.own("keep_versions")) + (recipe.keep_best != "none") + N_GOING)
    return n_checkpoints * checkpoint + n_versions * version


def _seconds(recipe: RecipeConfig, pace: Pace) -> float:
    n_tokens = recipe.trajectories_per_step * pace.tokens_per_trajectory
    return n_tokens / pace.tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Room:
    """What there is: `device` of one GPU, `host` of one host's memory, `disk` free; bytes. None: not known."""

    device: int | None
    host: int | None
    disk: int | None


def find_shortage(estimate: Estimate, room: Room, recipe: RecipeConfig) -> str:
    """Return in words what cannot fit and what to change, "" when all fits as far as is known."""
    on_host = recipe.n_processes * (estimate.host if room.device is not None else estimate.host + estimate.device_total)
    shortages = [
        ("GPU's memory", estimate.device_total, room.device, suggest(estimate, recipe)),
        ("host's memory", on_host, room.host, suggest(estimate, recipe, is_on_host=True)),
        ("disk", estimate.disk, room.disk, "keep_checkpoints, keep_versions or n_steps"),
    ]
    for what, needed, there, settings in shortages:
        if there is not None and needed > there:
            return (
                f"the run needs about {needed / GIB:.1f} GiB of the {what}, which has {there / GIB:.1f} GiB: "
                f"change {settings}"
            )
    return ""


def suggest(estimate: Estimate, recipe: RecipeConfig, *, is_on_host: bool = False) -> str:
    """Return the settings that would help, those of the largest part first."""
    per_token = estimate.device["activations"] + estimate.device["logits"]
    ways = []
    if per_token > sum(estimate.device.get(name, 0) for name in ("gradients", "optimizer")):
        ways += ["max_tokens_per_microbatch"] + ([] if recipe.gradient_checkpointing else ["gradient_checkpointing"])
    if recipe.tuning == "full":
        ways += ["tuning (lora)"]
    if not is_on_host:
        ways += ["zero_stage", "offload"] if recipe.offload != "parameters" else []
        ways += ["tuning (qlora)"] if recipe.tuning == "lora" else []
    elif recipe.n_processes > 1:
        ways += ["n_processes"]
    return ", ".join(ways or ["max_tokens_per_microbatch"]) + ", or use a smaller base model"
