"""The policy: a causal language model of which an adapter or every weight learns, and the engine that trains it.

Weights are in fp32; matrix products run in bf16 by autocast where the job says so (bf16 weights would swallow updates
of the size that reinforcement learning makes). Knows nothing of losses, batches or files of the run.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from peft import PeftModel
from torch import Tensor, nn

from apps.core.contracts.training import TrainJob
from worker.trainer.errors import TrainerError
from worker.trainer.logprobs import token_logprobs
from worker.trainer.trie_attention import lay_out
from worker.trainer.tries import Targets, Trie
from worker.trainer.tuning import load_base, load_model

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8


class Policy(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """Log-probs and entropies of given tokens, and nothing computed for the others that can be left out."""

    def __init__(self, model: Any, *, precision: str, load_reference: Callable[[], Any]) -> None:
        super().__init__()
        self.model = model
        self.precision = precision
        self._load_reference = load_reference
        self._references: list[Any] = []  # in a list, since it is no part of what DeepSpeed shares out and saves
        # Mean and number of the rewards that a loss on labels has seen; a buffer, so that checkpoints hold it.
        self.register_buffer("level", torch.zeros(2, dtype=torch.float64))

    def forward(self, *, trie: Trie, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (N,) of `targets`, each at the temperature it was sampled at.

        Exact: what sequences of the trie share is computed once, its gradients are the sums over all of them, and the
        result is that of each sequence alone. Only nodes with a target pass through the output layer.
        """
        return token_logprobs(self._compute_logits(trie, targets), targets)

    def rank_tokens(self, *, trie: Trie, targets: Targets, n_tokens: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens where each target was sampled, and their log-probs at its temperature; (N, K)."""
        logits = self._compute_logits(trie, targets).float() / targets.temperatures[:, None]
        logprobs, token_ids = logits.log_softmax(-1).topk(n_tokens)
        return token_ids[targets.rows], logprobs[targets.rows]

    def _compute_logits(self, trie: Trie, targets: Targets) -> Tensor:
        """Return the output of the nodes that have a target, (R, V)."""
        with self._autocast(trie.token_ids.device.type), self._output_only_at(targets.nodes):
            answer = self.model(
                input_ids=trie.token_ids[None], position_ids=trie.depths[None], trie=lay_out(trie), use_cache=False
            )
        logits: Tensor = answer.logits
        return logits

    def without_adapter(self) -> AbstractContextManager[Any]:
        """Within it this is the base model, the reference that a KL term holds on to.

        Where all weights are trained that is a second model, loaded when it is first asked for. Not for gradients.
        """
        if isinstance(self.model, PeftModel):
            context: AbstractContextManager[Any] = self.model.disable_adapter()
            return context
        return self._as_reference()

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        trained = self.model
        if not self._references:
            device = next(trained.parameters()).device
            self._references.append(self._load_reference().requires_grad_(False).to(device))
        self.model = self._references[0]
        try:
            yield
        finally:
            self.model = trained

    def move_level(self, rewards: Tensor) -> float:
        """Take rewards (J,) into their running mean, and return it."""
        mean, count = self.level.tolist()
        count += len(rewards)
        mean += (float(rewards.sum()) - len(rewards) * mean) / count
        self.level.copy_(torch.tensor([mean, count]))
        return float(mean)

    def predict(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most likely token after each of input_ids (1, T) and its log-prob (nats, temperature 1): (T,)."""
        with self._autocast(input_ids.device.type):
            logits = self.model(input_ids=input_ids, use_cache=False).logits[0]  # (T, V)
        logprobs, likely_ids = logits.float().log_softmax(-1).max(-1)
        return likely_ids, logprobs

    @contextmanager
    def _output_only_at(self, nodes: Tensor) -> Iterator[None]:
        """Let only these nodes (R,) into the output layer, the widest of all; whatever follows it sees (R, V)."""

        def select(_layer: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0][0, nodes], *inputs[1:])  # (1, T, E) to (R, E)

        hook = self.model.get_output_embeddings().register_forward_pre_hook(select)
        try:
            yield
        finally:
            hook.remove()

    def _autocast(self, device_type: str) -> AbstractContextManager[Any]:
        # Entered inside the module: DeepSpeed's engine switches an outer autocast off.
        return torch.autocast(device_type, dtype=torch.bfloat16) if self.precision == "bf16" else nullcontext()


def load_policy(job: TrainJob) -> Policy:
    """Return the policy that the job starts from; a fresh adapter has no effect and is drawn from the job's seed."""
    model = prepare_model(load_model(job), job)
    return Policy(model, precision=job.precision, load_reference=lambda: load_base(job.base_model_dir))


def prepare_model(model: Any, job: TrainJob) -> Any:
    """Return the model ready to be trained as the job says. Raises TrainerError for a precision that there is not."""
    if job.precision not in ("bf16", "fp32"):
        raise TrainerError(f"Unknown precision {job.precision!r}: use bf16 or fp32.")
    if job.gradient_checkpointing:
        # Not reentrant: the other way needs inputs that require gradients, which a frozen embedding has not.
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def build_engine(policy: Policy, job: TrainJob) -> Any:
    """Return the DeepSpeed engine around `policy`: AdamW without weight decay, gradients averaged over the ranks."""
    if job.offload != "none" and job.device == "cpu":
        raise TrainerError("offload has no effect on a CPU, where all is in the host's memory already: set it to none.")
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    make = torch.optim.AdamW if job.offload == "none" else DeepSpeedCPUAdam  # the update runs where its state is
    optimizer = make(trainable, lr=job.optimizer.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=engine_config(job))
    engine.train()
    return engine


def engine_config(job: TrainJob) -> dict[str, Any]:
    """Return DeepSpeed's configuration."""
    zero: dict[str, Any] = {"stage": job.zero_stage}
    if job.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if job.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # the loss is scaled by us; this only has to be consistent
        "gradient_accumulation_steps": 1,  # the boundary is set by hand: micro-batches per step vary
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1_000_000_000,
    }
    if job.zero_stage > 0:
        config["gradient_clipping"] = job.optimizer.max_grad_norm
    return config


def max_length(policy: Policy) -> int:
    """Return how many positions the model has, or sees at once where its attention has a window."""
    config = policy.model.config
    return int(getattr(config, "sliding_window", None) or config.max_position_embeddings)


def vocab_size(policy: Policy) -> int:
    """Return the number of token ids the model knows."""
    return int(policy.model.config.vocab_size)
