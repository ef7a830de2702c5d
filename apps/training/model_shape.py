"""What a base model's folder says of its size, as far as this host can see it. Loads no model and no torch."""

import json
import math
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from apps.training.estimate import ModelShape

OUTPUT_LAYER = "lm_head.weight"


def read_model_shape(folder: Path) -> ModelShape | None:
    """Return the model's shape, None where the folder is not on this host or does not say enough."""
    try:
        return _read(folder, (folder / "config.json").stat().st_mtime_ns)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, struct.error):
        return None


@lru_cache(maxsize=32)
def _read(folder: Path, _written_at: int) -> ModelShape:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    tensors = [tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _list_tensors(path)]
    return ModelShape(
        n_parameters=sum(size for _, size in tensors) or _fail(),
        n_output_parameters=sum(size for name, size in tensors if name.endswith(OUTPUT_LAYER)),
        n_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        mlp_size=config["intermediate_size"],
        query_size=config["num_attention_heads"] * head_size,
        key_size=(config.get("num_key_value_heads") or config["num_attention_heads"]) * head_size,
        vocab_size=config["vocab_size"],
    )


def _fail() -> int:
    raise ValueError("the folder holds no safetensors")


def _list_tensors(path: Path) -> list[tuple[str, int]]:
    """The names and sizes in the header of a safetensors file: its length in eight bytes, then JSON with each tensor's
    shape."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return [(name, math.prod(tensor["shape"])) for name, tensor in header.items() if name != "__metadata__"]
