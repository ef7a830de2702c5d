"""Every setting of a recipe does something: it changes what the trainer is told, or is read where a run is fed or
watched. One that is read nowhere would be a silent no-op; one that a choice ignores is refused (test_recipes.py)."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from apps.core.contracts.codec import encode
from apps.core.errors import InvalidInput
from apps.registry.models import Policy, Version
from apps.training.choices import LOSSES, OWN_SETTINGS
from apps.training.jobs import build_job
from apps.training.models import Run
from apps.training.recipes import RecipeConfig, read_recipe

ROOT = Path(__file__).resolve().parents[3]
DEFINED_IN = {"choices.py", "recipes.py", "resources.py"}
READERS = ("recipe", "_recipe", "config")
COMPANIONS: Mapping[str, dict[str, Any]] = {
    "overlong_tokens": {"overlong_window": 10},
    "overlong_window": {"overlong_tokens": 10},
    "offload": {"zero_stage": 3},
}
CONTEXTS: list[dict[str, Any]] = [
    {},
    *({axis: choice} for axis, choices in OWN_SETTINGS.items() for choice in choices),
    *({"algorithm": algorithm, "loss": loss} for algorithm, losses in LOSSES.items() for loss in losses),
]


def find_read_settings() -> set[str]:
    """The settings that are asked of a recipe by name, outside of where recipes are defined."""
    found = set()
    for folder in ("apps/training", "worker/tasks"):
        for path in sorted((ROOT / folder).glob("*.py")):
            if path.name not in DEFINED_IN:
                found |= set(_read_in(ast.parse(path.read_text())))
    return found


def _read_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_recipe(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "own":
            yield from (str(one.value) for one in node.args if isinstance(one, ast.Constant))


def _is_recipe(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "read_recipe"
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in READERS


def tell_trainer(recipe: RecipeConfig) -> str:
    """The job of a run by this recipe, from the base."""
    policy = Policy(id="plcy", slug="shop", base_model="tiny", base_model_dir="models/tiny")
    run = Run(id="run", policy=policy, start_version=Version(policy=policy), recipe=recipe.model_dump(mode="json"))
    return encode(build_job(run, device="cpu", engine_dtype="float32"))


def change(name: str) -> tuple[RecipeConfig, RecipeConfig]:
    """Two recipes that differ in this setting, in a context where it means something."""
    for context in CONTEXTS:
        base = context | COMPANIONS.get(name, {})
        if name in context:
            continue
        found = [recipe for value in _values(name) if (recipe := _read(base | {name: value})) is not None]
        for one in found:
            for other in found:
                if getattr(one, name) != getattr(other, name):
                    return one, other
    raise AssertionError(f"no recipe has {name}")


def _read(chosen: dict[str, Any]) -> RecipeConfig | None:
    try:
        return read_recipe(chosen)
    except InvalidInput:
        return None


def _values(name: str) -> list[Any]:
    annotation = RecipeConfig.model_fields[name].annotation
    kinds = [annotation, *get_args(annotation)]
    choices = [value for kind in kinds if get_origin(kind) is Literal for value in get_args(kind)]
    return choices or ([True, False] if bool in kinds else [1, 2, 0.01, 0.02, 8, 16, 64, 128, 1.5])


@pytest.mark.parametrize("name", list(RecipeConfig.model_fields))
def test_it_does_something(name: str) -> None:
    one, other = change(name)
    assert tell_trainer(one) != tell_trainer(other) or name in find_read_settings()


def test_a_setting_that_nothing_reads_would_be_seen() -> None:
    assert "colour" not in find_read_settings()
    assert {"restarts", "promote", "n_hosts"} <= find_read_settings()
