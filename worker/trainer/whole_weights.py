"""Writes all weights after a step as a model folder of its own: what a full refresh puts on an engine, whole or not at
all.

The output layer has weights of its own in it even where the model shares them with the input embeddings: vLLM's reload
answers 200 and serves wrong logits when it is missing.
"""

import shutil
from pathlib import Path
from typing import Any

import deepspeed
import torch

from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import AdapterFiles, TrainJob, weights_dir
from worker.trainer.files import build_folder
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks

TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt", "*.model")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}  # what engines compute in; the masters stay in checkpoints


def save_weights(policy: Policy, *, job: TrainJob, run_dir: Path, step: int, ranks: Ranks) -> AdapterFiles | None:
    """Write the model after `step`; all ranks call it, rank 0 writes and gets the result."""
    state = _gather(policy.model, dtype=DTYPES[job.precision], zero_stage=job.zero_stage, ranks=ranks)
    if not ranks.is_main:
        return None
    folder = run_dir / weights_dir(step)
    with build_folder(folder) as partial:
        _write(policy.model, state, partial)
        for pattern in TOKENIZER_FILES:
            for path in Path(job.base_model_dir).glob(pattern):
                shutil.copy(path, partial)
    return AdapterFiles(path=str(folder), sha256=hash_folder(folder))


def _gather(model: Any, *, dtype: torch.dtype, zero_stage: int, ranks: Ranks) -> dict[str, Any]:
    """Return on rank 0 all weights on the CPU, under their names; one at a time, so that no device holds all."""
    state = {}
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=zero_stage == 3):
            if ranks.is_main:
                state[name] = parameter.detach().to("cpu", dtype).clone()
    output = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    shared = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
    if ranks.is_main and f"{output}.weight" not in state:
        state[f"{output}.weight"] = state[f"{shared}.weight"].clone()
    return state


def _write(model: Any, state: dict[str, Any], folder: Path) -> None:
    was_tied = model.config.tie_word_embeddings
    model.config.tie_word_embeddings = False
    try:
        model.save_pretrained(folder, state_dict=state)
    finally:
        model.config.tie_word_embeddings = was_tied
    for path in folder.iterdir():
        path.chmod(0o644)  # engines may run as another user
