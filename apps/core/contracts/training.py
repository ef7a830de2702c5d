"""What the train task and the trainer process say to each other, through files in the run's folder.

Layout: `job.json`, `inbox/batch-%06d.json`, `inbox/stop`, `events.jsonl`, `trainer.log`, `beats/rank-%03d`,
`checkpoints/step-%06d/`, what a step made: `adapters/step-%06d/` or `weights/step-%06d/`, and `reward_model/` once a
run that trains one has ended. Every file but the two logs and the beats appears by an atomic rename. Token ids and
log-probs are the engine's own.
"""

from dataclasses import dataclass, field

from apps.core.contracts.labelled import Conversation, Judged

JOB_FILE = "job.json"
EVENTS_FILE = "events.jsonl"
LOG_FILE = "trainer.log"
STOP_FILE = "inbox/stop"
BEATS_DIR = "beats"
CHECKPOINTS_DIR = "checkpoints"
REWARD_MODEL_DIR = "reward_model"


def batch_file(step: int) -> str:
    """Return the name, inside the run's folder, of the batch for `step` (counted from 1)."""
    return f"inbox/batch-{step:06d}.json"


def checkpoint_dir(step: int) -> str:
    """Return the name, inside the run's folder, of the checkpoint after `step`."""
    return f"{CHECKPOINTS_DIR}/step-{step:06d}"


def beat_file(rank: int) -> str:
    """Return the name, inside the run's folder, of the empty file that a rank touches while it is at work."""
    return f"{BEATS_DIR}/rank-{rank:03d}"


def adapter_dir(step: int) -> str:
    """Return the name, inside the run's folder, of the adapter after `step`."""
    return f"adapters/step-{step:06d}"


def weights_dir(step: int) -> str:
    """Return the name, inside the run's folder, of the whole model after `step`, where all weights are trained."""
    return f"weights/step-{step:06d}"


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Low-rank adapter on every linear layer. `alpha / rank` scales the update."""

    rank: int
    alpha: int


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """The loss, how tokens are weighed in it, and how far it trusts what another policy sampled.

    `kind`, `aggregation` and `correction` are keys of the tables in worker.trainer (losses and label_losses,
    aggregation, corrections); docs/recipes.md has their formulas. Each reads only the bounds that are its own
    (apps.training.choices.OWN_SETTINGS); the others keep their defaults here and mean nothing.
    """

    kind: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0
    ratio_cap: float = 5.0
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    divergence_cap: float = 0.2
    aggregation: str = "token_mean"
    constant_tokens: int = 1024
    correction: str = "none"
    weight_low: float = 0.5
    weight_high: float = 2.0
    drift_cap: float = 0.5
    kl: str = "none"
    """"none", "k1_reward", "k2_loss" or "k3_loss": against the base model, which is the policy without its adapter."""
    kl_coefficient: float = 0.0
    turn_discount: float = 1.0
    """With "k1_reward": what the distance of later turns costs one turn earlier."""
    whitens: bool = False
    """With "k1_reward": advantages are normalised by the trainer, over the batch's tokens, once the cost is paid."""
    beta: float = 0.1
    label_noise: float = 0.0
    hint_weight: float = 0.0
    top_tokens: int = 0
    """How many of the likeliest tokens the teacher with the hint is asked for; 0: only what it says of the sampled."""
    sft_weight: float = 0.0
    """What imitating the batch's `judged` weighs beside the policy gradient."""
    good_weight: float = 1.0
    bad_weight: float = 1.0
    min_ess: float = 0.0
    """Below this effective sample size (a fraction) an optimizer step is shortened in proportion; 0: never."""


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW without weight decay. About `minibatch_samples` samples make one optimizer step; one epoch over the batch.

    About, because the steps of a trajectory stay together.
    """

    learning_rate: float
    max_grad_norm: float
    minibatch_samples: int


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """How a critic judges turns: GAE's lambda, what a reward is worth one turn earlier, and its own loss."""

    gae_lambda: float
    turn_discount: float
    value_coefficient: float
    value_clip: float


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A fixed sequence on which trainer and engine must agree.

    `token_ids` has length T. `likely_ids[i]` is the trainer's most likely token after `token_ids[:i + 1]`, and
    `logprobs[i]` its log-prob (nats, temperature 1): both have length T - 1, and are empty in a question.
    The most likely token, since any engine names its log-prob among the first few.
    """

    token_ids: tuple[int, ...]
    likely_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TokenText:
    """A token as the engine that samples has it, by which the trainer knows that its tokenizer is the same."""

    token_id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """Everything one trainer process needs to know; read once at its start."""

    run_id: str
    base_model_dir: str
    initial_adapter_dir: str | None
    n_steps: int
    lora: LoraSettings | None
    """None where all weights are trained."""
    loss: LossSettings
    optimizer: OptimizerSettings
    zero_stage: int
    max_tokens_per_microbatch: int
    seed: int
    device: str
    """"cpu" or "cuda"."""
    algorithm: str = "policy_gradient"
    """A key of `worker.trainer.algorithms.ALGORITHMS`: what is read of a batch, and which losses there are."""
    critic: CriticSettings | None = None
    """Whether the policy learns what to expect of a turn: advantages are then the trainer's to find."""
    precision: str = "bf16"
    """"bf16": autocast over fp32 weights; "fp32": exact, for tests and comparisons."""
    tuning: str = "lora"
    """A key of `worker.trainer.tuning.TUNINGS`: what of the model learns."""
    initial_weights_dir: str | None = None
    """A version's whole model to start from in place of the base, which stays the reference."""
    offload: str = "none"
    """What is held in the host's memory rather than the GPU's: "none", "optimizer", "parameters" (and optimizer)."""
    gradient_checkpointing: bool = False
    """Whether each layer's activations are computed again in the backward pass rather than kept."""
    token_texts: tuple[TokenText, ...] = ()
    """Some tokens of the engines'; none where no engine could be asked."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay."""
    keep_best: str = "none"
    """"none", or a key of `worker.trainer.checkpoints.BEST`: the checkpoint that is best by it stays as well."""


@dataclass(frozen=True, kw_only=True)
class TrainSample:
    """One step of a trajectory: the context the model saw and what it sampled.

    `completion_ids` and `logprobs` have equal length; the log-probs are the engine's, at `temperature`.
    `advantage` belongs to the trajectory and is broadcast to every completion token.
    """

    step_id: str
    trajectory_id: str
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    temperature: float
    reward: float | None = None
    """With a critic: what came of this turn before the next one; a trajectory's turns stand in order. Else None."""
    hint: Conversation | None = None
    """What the teacher of hindsight distillation sees in place of the prompt; the trainer renders it."""
    hinted_ids: tuple[int, ...] = ()
    """The same in tokens, once rendered."""

    @property
    def is_silent(self) -> bool:
        """Say whether there is nothing to learn from it by itself."""
        return self.advantage == 0 and self.reward is None and self.hint is None


@dataclass(frozen=True, kw_only=True)
class TrainBatch:
    """What one step of a run trains on: `samples` by policy gradient, `judged` by the losses on labels.

    `step` counts from 1. The probe comes back with log-probs filled in; one without tokens is the trainer's to choose.
    """

    step: int
    samples: tuple[TrainSample, ...]
    probe: Probe
    reward_mean: float | None = None
    """Of the trajectories, where they have rewards: by it the best checkpoint may be kept."""
    judged: tuple[Judged, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AdapterFiles:
    """A finished adapter, or whole model: its folder, and `contracts.checksum.hash_folder` of it."""

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class TrainerEvent:
    """One line of `events.jsonl`. A last line without its newline is still being written: leave it.

    `metrics` of a "step" (means are over the completion tokens of the whole step unless said otherwise):
    loss (mean over the optimizer steps); kl (k3 estimate of the divergence from the behaviour policy); ratio_mean,
    ratio_max (new over engine's probability); clip_fraction; masked_fraction (tokens that the correction gives no
    weight); reference_kl (k3 estimate of the divergence from the base model; 0 where no recipe asks for it); ess
    (effective sample size as a fraction, 0..1); step_scale (what the ESS guard left of the optimizer steps, mean);
    entropy (nats, at the sampling temperature); grad_norm (before clipping, mean over the optimizer steps);
    value_loss, sft_loss, teacher_kl (weighted means, where a recipe has them: of a critic, of what is imitated, of the
    coarse divergence from a teacher);
    mean_logprob_diff (mean absolute gap between trainer and engine on the first minibatch, before any update); tokens
    (prompt and completion of every sample, though what they share is computed once); tokens_per_s; seconds;
    learning_rate; samples.

    kind: "ready" (model loaded; `step` = last finished step, 0 on a fresh start; `message` tells of checkpoints that
    were passed over: the steps up to the newest event are then trained again, with the same batches and without an
    event), "step" (step trained, checkpointed and written as an adapter: `metrics`, `adapter` and, but for a reward
    model, `probe` are set), "done" (n_steps reached), "stopped" (asked to; a checkpoint of the last finished step
    exists), "failed" (`message` says why, in words for a person).
    """

    kind: str
    step: int
    at: float
    """Unix time, seconds."""
    metrics: dict[str, float] = field(default_factory=dict)
    adapter: AdapterFiles | None = None
    probe: Probe | None = None
    message: str = ""
    may_pass: bool = False
    """Of "failed": another attempt from the last checkpoint may succeed (a killed process), so that policy may try."""
