"""How many token ids a policy's base model has, as far as this host can see its folder. Loads no model."""

import json
from functools import lru_cache
from pathlib import Path

from apps.registry.models import Policy


def read_vocabulary_size(policy: Policy) -> int | None:
    """Return the number of ids (0 to size - 1), None where the model's folder is not on this host or does not say."""
    path = Path(policy.base_model_dir) / "config.json"
    try:
        return _read_size(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=32)
def _read_size(path: Path, _written_at: int) -> int | None:
    config = json.loads(path.read_text())
    if not isinstance(config, dict):
        return None
    text = config.get("text_config")  # where models that also see pictures keep it
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    return size if isinstance(size, int) and size > 0 else None
