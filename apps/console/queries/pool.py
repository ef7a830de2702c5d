"""What a run would find in the pool now, and why the rest is not for it."""

from dataclasses import dataclass, replace
from typing import Any

from apps.accounts.models import Project
from apps.console.run_form_words import CHOICES
from apps.core.errors import ServiceError
from apps.training.choices import SFT
from apps.training.launching import Preview, preview_launch
from apps.training.pool import READY, REASONS, describe_open
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.room import Outlook, look_ahead
from apps.training.selection import read_selection
from apps.trajectories.blindness import Hidden


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """How many trajectories are ready, and (words, number) for those that are not; or why nobody can say.

    `suits_labels` is what the form calls the algorithm that could learn from these, where the chosen one cannot.
    """

    n_ready: int = 0
    others: tuple[tuple[str, int], ...] = ()
    n_open: int = 0
    n_elsewhere: int = 0  # in the channel that is not chosen
    open_words: str = ""  # what makes the open ones ready
    problem: str = ""
    suits_labels: str = ""
    found: Preview | None = None
    recipe: RecipeConfig | None = None

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
        found = preview_launch(project=project, recipe=config, selection=read_selection(selection), hidden=hidden)
    except ServiceError as error:
        return Readiness(problem=error.message)
    counts = found.counts
    is_of_others = not counts[READY] and bool(counts.get("untrainable") or counts.get("stale"))
    return Readiness(
        n_ready=counts[READY],
        others=tuple((words, counts[reason]) for reason, words in REASONS.items() if counts.get(reason)),
        n_open=counts.get("open", 0),
        n_elsewhere=counts.get("elsewhere", 0),
        open_words=describe_open(),
        suits_labels=dict(CHOICES["recipe.algorithm"])[SFT] if is_of_others and not config.learns_from_labels else "",
        found=found,
        recipe=config,
    )


def read_outlook(project: Project, *, recipe: dict[str, Any]) -> Outlook | None:
    """Ask the training room what a run would take; None while the settings are wrong, which the form says."""
    try:
        return look_ahead(project, read_recipe(recipe))
    except ServiceError:
        return None
