"""Recipes: defaults that work, and every setting that would be wrong or ignored refused by name."""

import subprocess
import sys
from typing import Any, get_args

import pytest

from apps.core.errors import InvalidInput
from apps.training.choices import LOSSES, OWN_SETTINGS
from apps.training.estimators import ESTIMATORS
from apps.training.recipes import RecipeConfig, read_recipe


def test_nothing_chosen_is_the_recipe_for_live_traffic() -> None:
    recipe = read_recipe({})
    assert (recipe.estimator, recipe.ema_decay, recipe.group_size) == ("ema", 0.95, None)


def test_groups_have_a_size_and_no_decay() -> None:
    recipe = read_recipe({"estimator": "rloo"})
    assert (recipe.group_size, recipe.ema_decay) == (4, None)


@pytest.mark.parametrize("chosen", [{}, {"estimator": "rloo"}, {"ema_decay": 0.5}])
def test_what_is_stored_reads_back_the_same(chosen: dict[str, Any]) -> None:
    recipe = read_recipe(chosen)
    assert read_recipe(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"estimator": "rloo", "ema_decay": 0.9}, "ema_decay has no effect"),
        ({"estimator": "ema", "group_size": 4}, "group_size has no effect"),
        ({"estimator": "rloo", "group_size": 5}, "multiple of group_size"),
        ({"gamma": 0.1}, "recipe.gamma"),
        ({"algorithm": "reward_model", "tuning": "qlora"}, "the tuning lora only"),
        ({"clip_high": 0.3, "loss": "cispo"}, "choose ppo or dual_clip or gspo"),
        ({"overlong_tokens": 100}, "only together"),
        ({"overlong_tokens": 10, "overlong_window": 20}, "must not be above overlong_tokens"),
        ({"estimator": "maxrl", "overlong_tokens": 100, "overlong_window": 10}, "maxrl is defined for others"),
        ({"loss": "dppo_tv", "correction": "tis"}, "would count twice"),
        ({"kl": "k1_reward", "estimator": "grpo"}, "choose k3_loss or k2_loss"),
        ({"kl": "k1_reward", "estimator": "maxrl"}, "which maxrl divides by its group's"),
        ({"kl": "k1_reward", "estimator": "reinforce_pp", "credit": "step"}, "each turn has its own"),
        ({"loss": "sft"}, "recipe.loss"),
        ({"loss": "dpo"}, "loss dpo is none of the algorithm policy_gradient"),
        ({"algorithm": "sft", "ema_decay": 0.9}, "ema_decay has no effect with the algorithm sft"),
        ({"algorithm": "sft", "estimator": "ema"}, "estimator has no effect with the algorithm sft"),
        ({"algorithm": "unpaired", "aggregation": "token_mean"}, "aggregation has no effect with the algorithm unp"),
        ({"estimator": "gae", "credit": "trajectory"}, "gae gives each step its own credit"),
        ({"estimator": "gae", "drop_without_signal": True}, "before the critic has spoken"),
        ({"estimator": "gae", "overlong_tokens": 9, "overlong_window": 3}, "overlong_tokens has no effect"),
        ({"epochs": 2}, "epochs has no effect with the algorithm policy_gradient"),
        ({"algorithm": "preference", "label_noise": 0.1}, "label_noise has no effect with the loss dpo"),
        ({"algorithm": "unpaired", "minibatch_samples": 2}, "minibatch_samples must be 3 or more"),
        ({"min_ess": 2}, "recipe.min_ess"),
        ({"learning_rate": 0}, "recipe.learning_rate"),
        ({"learning_rate": float("inf")}, "recipe.learning_rate"),
        ({"clip_low": 1.0}, "recipe.clip_low"),
        ({"ema_decay": 1.0}, "recipe.ema_decay"),
        ({"n_steps": 0}, "recipe.n_steps"),
        ({"n_steps": "many"}, "recipe.n_steps"),
        ({"zero_stage": 4}, "recipe.zero_stage"),
        ({"estimator": "value"}, "recipe.estimator"),
        ({"algorithm": "ppo"}, "recipe.algorithm"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_by_name(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_recipe(chosen)


def test_the_field_at_fault_is_named_for_the_form() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_recipe({"learning_rate": -1})
    assert caught.value.field == "recipe.learning_rate"


def test_only_a_recipe_with_a_moving_mean_has_a_decay() -> None:
    assert RecipeConfig().own("ema_decay") == 0.95
    with pytest.raises(ValueError, match="ema_decay is no setting"):
        RecipeConfig(estimator="rloo").own("ema_decay")


OFF = {
    "overlong_tokens": 100,
    "overlong_window": 10,
    "min_ess": 0.5,
    "sft_weight": 0.1,
    "top_tokens": 8,
}  # values for what is off unless chosen


def choose(axis: str, choice: str) -> dict[str, Any]:
    """The choice, and the algorithm that has it."""
    fitting = [name for name, losses in LOSSES.items() if axis != "loss" or choice in losses]
    return {"algorithm": fitting[0], axis: choice}


@pytest.mark.parametrize(("axis", "choice"), [(axis, choice) for axis in OWN_SETTINGS for choice in OWN_SETTINGS[axis]])
def test_every_choice_comes_with_its_own_settings_and_refuses_the_others(axis: str, choice: str) -> None:
    chosen = choose(axis, choice)
    recipe = read_recipe(chosen)
    own = OWN_SETTINGS[axis][choice]
    others = {name: value for settings in OWN_SETTINGS[axis].values() for name, value in settings.items()}
    assert {name: getattr(recipe, name) for name in own} == own
    for name in sorted(others.keys() - own.keys()):
        assert getattr(recipe, name) is None
        with pytest.raises(InvalidInput, match=f"{name} has no effect with the {axis} {choice}"):
            read_recipe({**chosen, name: others[name] or OFF[name]})


@pytest.mark.parametrize("algorithm", OWN_SETTINGS["algorithm"])
def test_an_algorithm_has_losses_of_its_own_and_refuses_the_others(algorithm: str) -> None:
    assert read_recipe({"algorithm": algorithm}).loss in LOSSES[algorithm]
    for other in sorted(OWN_SETTINGS["loss"].keys() - set(LOSSES[algorithm])):
        with pytest.raises(InvalidInput, match=f"loss {other} is none of the algorithm {algorithm}"):
            read_recipe({"algorithm": algorithm, "loss": other})


def test_every_choice_is_one_of_the_recipe_and_one_that_the_trainer_knows() -> None:
    """The trainer's tables cannot be imported without torch: test_tables in its environment holds the other half."""
    for axis, choices in OWN_SETTINGS.items():
        assert set(choices_of(RecipeConfig.model_fields[axis].annotation)) == choices.keys()
    assert OWN_SETTINGS["estimator"].keys() == {"ema", "gae", *ESTIMATORS}


def choices_of(annotation: Any) -> tuple[str, ...]:
    """The words of a literal, which may be optional."""
    inner = next((part for part in get_args(annotation) if get_args(part)), annotation)
    return get_args(inner)


def test_recipes_and_advantages_load_neither_django_nor_torch() -> None:
    code = (
        "import sys, apps.training.recipes, apps.training.estimators; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'django', 'torch', 'numpy'}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
