"""What a run would find in the pool now, and why the rest is not for it."""

from dataclasses import dataclass, replace
from typing import Any

from apps.accounts.models import Project
from apps.console.run_form_words import CHOICES
from apps.core.errors import ServiceError
from apps.training.launching import Preview, find_algorithm, preview_launch
from apps.training.pool import READY, REASONS, describe_open
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.room import Outlook, look_ahead
from apps.training.selection import read_selection
from apps.trajectories.blindness import Hidden
from apps.trajectories.datasets.models import Snapshot


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """How many trajectories are ready, and (words, number) for those that are not; or why nobody can say.

    `other_way` is an algorithm that would learn something where the chosen one finds nothing, `other_words` what the
    form calls it.
    """

    n_ready: int = 0
    others: tuple[tuple[str, int], ...] = ()
    n_open: int = 0
    n_elsewhere: int = 0  # in the channel that is not chosen
    open_words: str = ""  # what makes the open ones ready
    problem: str = ""
    other_way: str = ""
    found: Preview | None = None
    recipe: RecipeConfig | None = None

    @property
    def other_words(self) -> str:
        return dict(CHOICES["recipe.algorithm"]).get(self.other_way, "")

    @property
    def is_refused(self) -> bool:
        return bool(self.found and self.found.refusal)

    @property
    def n_missing(self) -> int:
        return self.found.count_missing(self.recipe) if self.found and self.recipe else 0

    @property
    def n_steps(self) -> int:
        return self.found.count_steps(self.recipe) if self.found and self.recipe else 0

    def fit(self) -> "Readiness":
        """Say the same of a run that is as large as what is ready allows."""
        return replace(self, recipe=self.found.fit(self.recipe)) if self.found and self.recipe else self


def read_readiness(project: Project, *, recipe: dict[str, Any], selection: dict[str, Any], hidden: Hidden) -> Readiness:
    """Ask the training room, of what is not `hidden` from who looks."""
    try:
        config = read_recipe(recipe)
        narrowed = read_selection(selection)
        found = preview_launch(project=project, recipe=config, selection=narrowed, hidden=hidden)
    except ServiceError as error:
        return Readiness(problem=error.message)
    counts = found.counts
    other_way = None if counts[READY] else find_algorithm(project=project, selection=narrowed, hidden=hidden)
    return Readiness(
        n_ready=counts[READY],
        others=tuple((words, counts[reason]) for reason, words in REASONS.items() if counts.get(reason)),
        n_open=counts.get("open", 0),
        n_elsewhere=counts.get("elsewhere", 0),
        open_words=describe_open(),
        other_way=other_way or "",
        found=found,
        recipe=config,
    )


def suggest_training(project: Project, *, snapshot: Snapshot, hidden: Hidden) -> dict[str, str]:
    """Return what the form of a run on a snapshot begins with: the first algorithm that learns something from it now;
    where none does, the usual one, and the form says why."""
    chosen = {"selection.snapshot": snapshot.pk}
    try:
        algorithm = find_algorithm(project=project, selection=read_selection({"snapshot": snapshot.pk}), hidden=hidden)
    except ServiceError:  # no policy yet, which the form says
        return chosen
    return {**chosen, "recipe.algorithm": algorithm} if algorithm else chosen


def read_outlook(project: Project, *, recipe: dict[str, Any]) -> Outlook | None:
    """Ask the training room what a run would take; None while the settings are wrong, which the form says."""
    try:
        return look_ahead(project, read_recipe(recipe))
    except ServiceError:
        return None
