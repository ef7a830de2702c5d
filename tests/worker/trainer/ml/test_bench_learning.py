"""The bench of what recipes learn: its task is scored right, and every recipe gets what it learns from."""

import random

import pytest

from apps.training.choices import OWN_SETTINGS
from apps.training.estimators import BaselineState
from apps.training.recipes import read_recipe
from bench.learning import ALONE, RECIPES, STALE, is_grouped, list_lessons, print_grid, print_rows
from bench.learning_batches import build_batch
from bench.learning_task import END, Puzzle, Try, draw_puzzles


def tries_of(group: int) -> list[Try]:
    """Every other one right."""
    puzzles = draw_puzzles(8 // group, chance=random.Random(0)) * group
    wrong = (0, END)
    answers = [puzzle.answer_ids if place % 3 else wrong for place, puzzle in enumerate(puzzles)]
    return [
        Try(puzzle=puzzle, answer_ids=answer, logprobs=(-1.0,) * len(answer), reward=puzzle.reward(answer))
        for puzzle, answer in zip(puzzles, answers, strict=True)
    ]


def test_an_answer_is_worth_what_is_right_in_it() -> None:
    puzzle = Puzzle(digits=(3, 1, 2, 2))
    assert puzzle.answer_ids == (1, 2, 2, 3, END)
    assert puzzle.reward(puzzle.answer_ids) == 1.0
    assert puzzle.reward((1, 2, 2, 2, END)) == pytest.approx(0.4)
    assert puzzle.reward(()) == 0.0


@pytest.mark.parametrize("name", [*RECIPES])
def test_every_recipe_has_something_to_learn_from(name: str) -> None:
    recipe = read_recipe(dict(RECIPES[name]))
    tries = tries_of(4 if is_grouped(RECIPES[name]) else 1)
    batch, _ = build_batch(1, tries, recipe=recipe, state=BaselineState())
    assert bool(batch.samples) != bool(batch.judged)
    assert bool(batch.judged) == recipe.learns_from_labels


@pytest.mark.parametrize("axis", ["algorithm", "estimator", "loss"])
def test_it_leaves_no_recipe_out(axis: str) -> None:
    chosen = {getattr(read_recipe(dict(settings)), axis) for settings in RECIPES.values()}
    assert chosen - {None} == OWN_SETTINGS[axis].keys()


@pytest.mark.parametrize("settings", [*STALE.values(), *ALONE.values()])
def test_the_sweeps_are_of_recipes_that_there_are(settings: dict[str, str]) -> None:
    assert read_recipe(dict(settings)).algorithm == "policy_gradient"


def test_its_tables_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    lessons = list_lessons()
    numbers = {"before": 0.25, "after": 0.5, "worst": 0.4, "best": 0.6, "seconds": 1.0}
    rows = {name: [{"name": each.name, "group": each.group, **numbers} for each in lessons[name]] for name in lessons}
    print_rows("recipe", iter(rows["recipes"]))
    print_grid(iter(rows["staleness"]))
    recipes, grid = capsys.readouterr().out.strip().split("\n\n")
    assert recipes.splitlines()[0].split() == ["recipe", "tries", "before", "after", "worst", "best", "s/seed"]
    assert recipes.splitlines()[1].split() == ["ema", "1", "0.250", "0.500", "0.400", "0.600", "1.0"]
    assert grid.splitlines()[0].split() == ["versions", "old", *STALE]
    assert grid.splitlines()[-1].split() == ["16", *["0.500"] * len(STALE)]
