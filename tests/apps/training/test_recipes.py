"""Recipes: defaults that work, and every setting that would be wrong or ignored refused by name."""

import subprocess
import sys
from typing import Any

import pytest

from apps.core.errors import InvalidInput
from apps.training.recipes import RecipeConfig, read_recipe


def test_nothing_chosen_is_the_recipe_for_live_traffic() -> None:
    recipe = read_recipe({})
    assert (recipe.estimator, recipe.ema_decay, recipe.group_size) == ("ema", 0.95, None)


def test_groups_have_a_size_and_no_decay() -> None:
    recipe = read_recipe({"estimator": "group"})
    assert (recipe.group_size, recipe.ema_decay) == (4, None)


@pytest.mark.parametrize("chosen", [{}, {"estimator": "group"}, {"ema_decay": 0.5}])
def test_what_is_stored_reads_back_the_same(chosen: dict[str, Any]) -> None:
    recipe = read_recipe(chosen)
    assert read_recipe(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"estimator": "group", "ema_decay": 0.9}, "ema_decay has no effect"),
        ({"estimator": "ema", "group_size": 4}, "group_size has no effect"),
        ({"estimator": "group", "group_size": 5}, "multiple of group_size"),
        ({"lora_rank": 4}, "lora_rank must be one of"),
        ({"beta": 0.1}, "recipe.beta"),
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
    assert RecipeConfig().required_ema_decay == 0.95
    with pytest.raises(ValueError, match="no decay"):
        _ = RecipeConfig(estimator="group").required_ema_decay


def test_recipes_and_advantages_load_neither_django_nor_torch() -> None:
    code = (
        "import sys, apps.training.recipes, apps.training.batching; "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'django', 'torch', 'numpy'}))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
