"""What of a model learns: a low-rank adapter, the same over a base in four bits, or every weight.

The base stays frozen under an adapter. What learns is in fp32 whatever the products are computed in (see model.py):
these are the masters. Knows nothing of losses, batches or files of the run.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from apps.core.contracts.training import LoraSettings, TrainJob
from worker.trainer.errors import TrainerError
from worker.trainer.trie_attention import NAME as TRIE_ATTENTION

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


def load_model(job: TrainJob) -> Any:
    """Return the model with what learns set to require gradients. Raises TrainerError for what cannot be trained."""
    if job.tuning not in TUNINGS:
        raise TrainerError(f"Unknown tuning {job.tuning!r}: use {', '.join(TUNINGS)}.")
    return TUNINGS[job.tuning](job)


def load_base(
    folder: str, *, kind: Any = AutoModelForCausalLM, quantization: BitsAndBytesConfig | None = None, **options: Any
) -> Any:
    """Return the model in `folder`, of one of transformers' automatic kinds, in fp32 or quantised, with attention over
    tries."""
    try:
        base = kind.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            attn_implementation=TRIE_ATTENTION,
            quantization_config=quantization,
            **options,
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


def _load_lora(job: TrainJob) -> Any:
    return _adapt(load_base(job.base_model_dir), job)


def _load_qlora(job: TrainJob) -> Any:
    """NF4 with double quantisation under an adapter: QLoRA (arXiv 2305.14314)."""
    if job.device != "cuda" or find_spec("bitsandbytes") is None:
        raise TrainerError(
            "QLoRA needs an NVIDIA GPU and the package bitsandbytes in the ML environment; choose tuning lora here."
        )
    quantization = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    base = load_base(job.base_model_dir, quantization=quantization)
    # Checkpointing is switched on by model.py, for every tuning alike.
    return _adapt(prepare_model_for_kbit_training(base, use_gradient_checkpointing=False), job)


def _load_full(job: TrainJob) -> Any:
    """Every weight, from the weights of an earlier version, or from the base with an earlier adapter merged into it."""
    model = load_base(job.initial_weights_dir or job.base_model_dir)
    if job.initial_adapter_dir is not None:
        model = PeftModel.from_pretrained(model, str(_check_adapter(Path(job.initial_adapter_dir)))).merge_and_unload()
    return model.requires_grad_(True)


def _adapt(base: Any, job: TrainJob) -> Any:
    if job.lora is None:
        raise TrainerError(f"The tuning {job.tuning} needs the settings of its adapter.")
    torch.manual_seed(job.seed)  # every rank draws the same adapter
    if job.initial_adapter_dir is None:
        return get_peft_model(base, _lora_config(job.lora))
    return _load_adapter(base, Path(job.initial_adapter_dir), lora=job.lora)


def _lora_config(lora: LoraSettings) -> LoraConfig:
    return LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def _load_adapter(base: Any, folder: Path, *, lora: LoraSettings) -> Any:
    model = PeftModel.from_pretrained(base, str(_check_adapter(folder)), is_trainable=True)
    config = model.peft_config["default"]
    if (config.r, config.lora_alpha) != (lora.rank, lora.alpha):
        raise TrainerError(
            f"The adapter to start from has rank {config.r} and alpha {config.lora_alpha}, the run asks for rank "
            f"{lora.rank} and alpha {lora.alpha}. Use the adapter's own, or start from the base model."
        )
    return model


def _check_adapter(folder: Path) -> Path:
    if not (folder / "adapter_config.json").is_file():
        raise TrainerError(f"There is no adapter in {folder}: the version to start from is gone.")
    return folder


TUNINGS: Mapping[str, Callable[[TrainJob], Any]] = {"lora": _load_lora, "qlora": _load_qlora, "full": _load_full}
