"""Writes a finished adapter: LoRA weights only, in PEFT's format, which vLLM loads. Appears whole or not at all."""

import copy
import json
from pathlib import Path

import deepspeed
from peft import get_peft_model_state_dict
from safetensors.torch import save_file

from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.training import AdapterFiles, adapter_dir
from worker.trainer.files import build_folder
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks


def save_adapter(policy: Policy, *, run_dir: Path, step: int, zero_stage: int, ranks: Ranks) -> AdapterFiles | None:
    """Write the adapter after `step`; all ranks call it, rank 0 writes and gets the result."""
    trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    folder = run_dir / adapter_dir(step)
    with deepspeed.zero.GatheredParameters(trainable, enabled=zero_stage == 3):
        if ranks.is_main:
            with build_folder(folder) as partial:
                _write(policy, partial)
    if not ranks.is_main:
        return None
    return AdapterFiles(path=str(folder), sha256=hash_folder(folder))


def _write(policy: Policy, partial: Path) -> None:
    state = get_peft_model_state_dict(policy.model)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, partial / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.deepcopy(policy.model.peft_config["default"])
    config.inference_mode = True
    # Where the base model lies is no part of the adapter: the same weights give the same checksum on every machine.
    config.base_model_name_or_path = Path(config.base_model_name_or_path).name
    settings = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    (partial / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True, default=str))
