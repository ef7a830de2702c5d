"""From a recipe to what the trainer makes small. Pure: no database."""

from dataclasses import fields

from apps.core.contracts.training import CriticSettings, LossSettings
from apps.training.choices import CRITIC
from apps.training.recipes import RecipeConfig


def build_loss(recipe: RecipeConfig) -> LossSettings:
    """Return the recipe's loss; what its choices do not use stays as the contract has it."""
    shared = {field.name for field in fields(LossSettings)} & RecipeConfig.model_fields.keys()
    chosen = {name: getattr(recipe, name) for name in shared}
    given = {name: value for name, value in chosen.items() if value is not None}
    return LossSettings(kind=str(recipe.loss), whitens=recipe.is_whitened_last, **given)


def build_critic(recipe: RecipeConfig) -> CriticSettings | None:
    """Return how the recipe's critic judges; None where it has none."""
    if recipe.estimator != CRITIC:
        return None
    return CriticSettings(**{field.name: recipe.own(field.name) for field in fields(CriticSettings)})
