"""What a recipe can choose is what the trainer has: the other half of test_recipes, which cannot import torch."""

import pytest

from apps.training.choices import LOSSES as CHOICES
from apps.training.choices import OWN_SETTINGS
from worker.trainer.aggregation import WEIGHTS
from worker.trainer.algorithms import ALGORITHMS
from worker.trainer.corrections import CORRECTIONS
from worker.trainer.divergence import K1_REWARD
from worker.trainer.label_losses import LABEL_LOSSES
from worker.trainer.label_steps import CROSS_ENTROPY
from worker.trainer.losses import KL_LOSSES, LOSSES


@pytest.mark.parametrize(
    ("axis", "names"),
    [
        ("algorithm", ALGORITHMS.keys()),
        ("loss", {*LOSSES, *LABEL_LOSSES, CROSS_ENTROPY}),
        ("aggregation", WEIGHTS.keys()),
        ("correction", CORRECTIONS.keys()),
        ("kl", {"none", K1_REWARD, *KL_LOSSES}),
    ],
)
def test_every_choice_is_one_that_the_trainer_knows(axis: str, names: set[str]) -> None:
    assert OWN_SETTINGS[axis].keys() == names


def test_every_loss_is_offered_where_the_trainer_has_it() -> None:
    assert CHOICES["policy_gradient"] == tuple(LOSSES)
    assert set(CHOICES["hindsight"]) < LOSSES.keys()
    on_labels = CHOICES.keys() - {"policy_gradient", "hindsight"}
    assert {name for algorithm in on_labels for name in CHOICES[algorithm]} == {*LABEL_LOSSES, CROSS_ENTROPY}
