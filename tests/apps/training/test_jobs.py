"""From a recipe to the trainer's job."""

from dataclasses import asdict

import pytest

from apps.core.contracts.training import LossSettings
from apps.training.objectives import build_loss
from apps.training.recipes import read_recipe


def test_the_default_recipe_has_the_contracts_default_loss() -> None:
    assert build_loss(read_recipe({})) == LossSettings()


@pytest.mark.parametrize(
    ("recipe", "changed"),
    [
        ({"loss": "cispo", "ratio_cap": 4}, {"kind": "cispo", "ratio_cap": 4.0}),
        (
            {"correction": "icepop", "aggregation": "constant", "constant_tokens": 77},
            {"correction": "icepop", "weight_high": 5.0, "aggregation": "constant", "constant_tokens": 77},
        ),
        (
            {"kl": "k1_reward", "estimator": "reinforce_pp"},
            {"kl": "k1_reward", "kl_coefficient": 0.01, "whitens": True},
        ),
        (
            {"kl": "k1_reward", "credit": "step", "turn_discount": 0.5},
            {"kl": "k1_reward", "kl_coefficient": 0.01, "turn_discount": 0.5},
        ),
        ({"kl": "k2_loss", "min_ess": 0.3}, {"kl": "k2_loss", "kl_coefficient": 0.01, "min_ess": 0.3}),
    ],
)
def test_what_is_chosen_is_what_the_trainer_is_told(recipe: dict[str, object], changed: dict[str, object]) -> None:
    assert asdict(build_loss(read_recipe(recipe))) == asdict(LossSettings()) | changed
