"""What may be trained on top of what: adapters stand on the base, a whole model takes its place."""

import json
from pathlib import Path

from apps.core.errors import InvalidInput
from apps.registry.models import Policy, Version
from apps.training.resources import ResourceConfig

FIELD = "recipe.tuning"


def check_tuning(recipe: ResourceConfig, *, live: Version) -> None:
    """Raise InvalidInput, with the way out, when versions made like this could not be served after `live`."""
    if recipe.tuning == "full":
        _check_whole(live)
    elif live.is_whole:
        raise InvalidInput(
            f"recipe.tuning: live is version {live.number}, a whole model, and adapters stand on the base; choose "
            "full, or point live at the base or an adapter first",
            field=FIELD,
        )


def _check_whole(live: Version) -> None:
    if live.is_adapter:
        raise InvalidInput(
            f"recipe.tuning: live is version {live.number}, an adapter, and a whole model would take away the base "
            "that it stands on while it speaks; point live at the base (version 0) first, or choose lora",
            field=FIELD,
        )
    others = Policy.objects.filter(base_model=live.policy.base_model).exclude(pk=live.policy_id)
    if (other := others.first()) is not None:
        raise InvalidInput(
            f"recipe.tuning: {other.slug} stands on {other.base_model} too, and engines hold one whole model in its "
            "place; give this project a base model and engines of its own, or choose lora",
            field=FIELD,
        )
    if _is_tied(Path(live.policy.base_model_dir) / "config.json"):
        raise InvalidInput(
            "recipe.tuning: the base model shares input and output embeddings, which engines would reload wrongly; "
            "save it with tie_word_embeddings=false and a lm_head of its own, or choose lora",
            field=FIELD,
        )


def _is_tied(config: Path) -> bool:
    """Say whether the model's folder says so; what it leaves open shows when a version is verified."""
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and settings.get("tie_word_embeddings") is True
