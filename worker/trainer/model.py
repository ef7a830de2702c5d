"""The policy: a causal language model with a LoRA adapter on every linear layer, and the engine that trains it.

The base stays in fp32 and frozen; matrix products run in bf16 by autocast where the job says so (bf16 weights would
swallow updates of the size that reinforcement learning makes). Knows nothing of losses, batches or files of the run.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from apps.core.contracts.training import LoraSettings, TrainJob
from worker.trainer.errors import TrainerError
from worker.trainer.losses import token_logprobs
from worker.trainer.trie_attention import NAME as TRIE_ATTENTION
from worker.trainer.trie_attention import lay_out
from worker.trainer.tries import Targets, Trie

ADAM_BETAS = (0.9, 0.999)
ADAM_EPSILON = 1e-8
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


class Policy(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """Log-probs and entropies of given tokens, and nothing computed for the others that can be left out."""

    def __init__(self, model: Any, *, precision: str) -> None:
        super().__init__()
        self.model = model
        self.precision = precision

    def forward(self, *, trie: Trie, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (N,) of `targets`, each at the temperature it was sampled at.

        Exact: what sequences of the trie share is computed once, its gradients are the sums over all of them, and the
        result is that of each sequence alone. Only nodes with a target pass through the output layer.
        """
        with self._autocast(trie.token_ids.device.type), self._output_only_at(targets.nodes):
            answer = self.model(
                input_ids=trie.token_ids[None], position_ids=trie.depths[None], trie=lay_out(trie), use_cache=False
            )
        return token_logprobs(answer.logits, targets)

    def without_adapter(self) -> AbstractContextManager[Any]:
        """Within it this is the base model, the reference that a KL term holds on to."""
        context: AbstractContextManager[Any] = self.model.disable_adapter()
        return context

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
    """Return the policy with the job's adapter, or with a fresh one: zero effect, drawn from the job's seed."""
    if job.precision not in ("bf16", "fp32"):
        raise TrainerError(f"Unknown precision {job.precision!r}: use bf16 or fp32.")
    base = _load_base(job.base_model_dir)
    torch.manual_seed(job.seed)  # every rank draws the same adapter
    if job.initial_adapter_dir is None:
        model = get_peft_model(base, _lora_config(job.lora))
    else:
        model = _load_adapter(base, Path(job.initial_adapter_dir), lora=job.lora)
    return Policy(model, precision=job.precision)


def _load_base(folder: str) -> Any:
    try:
        base = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, attn_implementation=TRIE_ATTENTION
        )
    except (OSError, ValueError) as error:
        raise TrainerError(f"The base model in {folder} cannot be loaded: {error}") from error
    kinds = set(getattr(base.config, "layer_types", None) or ()) - ATTENTION_LAYERS
    is_of_attention = base._supports_attention_backend and not base._is_stateful  # noqa: SLF001  said nowhere else
    if kinds or not is_of_attention:
        # Other layers would mix the branches of a trie without a word.
        raise TrainerError(
            f"A model of type {base.config.model_type} has layers other than attention; it cannot be trained here."
        )
    return base


def _lora_config(lora: LoraSettings) -> LoraConfig:
    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def _load_adapter(base: Any, folder: Path, *, lora: LoraSettings) -> Any:
    if not (folder / "adapter_config.json").is_file():
        raise TrainerError(f"There is no adapter in {folder}: the version to start from is gone.")
    model = PeftModel.from_pretrained(base, str(folder), is_trainable=True)
    config = model.peft_config["default"]
    if (config.r, config.lora_alpha) != (lora.rank, lora.alpha):
        raise TrainerError(
            f"The adapter to start from has rank {config.r} and alpha {config.lora_alpha}, the run asks for rank "
            f"{lora.rank} and alpha {lora.alpha}. Use the adapter's own, or start from the base model."
        )
    return model


def build_engine(policy: Policy, job: TrainJob) -> Any:
    """Return the DeepSpeed engine around `policy`: AdamW without weight decay, gradients averaged over the ranks."""
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=job.optimizer.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON, weight_decay=0.0
    )
    engine, *_ = deepspeed.initialize(model=policy, optimizer=optimizer, config=_engine_config(job))
    engine.train()
    return engine


def _engine_config(job: TrainJob) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,  # the loss is scaled by us; this only has to be consistent
        "gradient_accumulation_steps": 1,  # the boundary is set by hand: micro-batches per step vary
        "zero_optimization": {"stage": job.zero_stage},
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
