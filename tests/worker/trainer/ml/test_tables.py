"""What a recipe can choose is what the trainer has: the other half of test_recipes, which cannot import torch."""

import pytest

from apps.training.recipes import OWN_SETTINGS
from worker.trainer.aggregation import WEIGHTS
from worker.trainer.corrections import CORRECTIONS
from worker.trainer.losses import KL_LOSSES, LOSSES


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        ("loss", LOSSES.keys()),
        ("aggregation", WEIGHTS.keys()),
        ("correction", CORRECTIONS.keys()),
        ("kl", {"none", "k1_reward", *KL_LOSSES}),
    ],
)
def test_every_choice_is_one_that_the_trainer_knows(axis: str, names: set[str]) -> None:
    assert OWN_SETTINGS[axis].keys() == names
