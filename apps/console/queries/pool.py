"""What a run would find in the pool now, and why the rest is not for it."""

from dataclasses import dataclass
from typing import Any

from apps.accounts.models import Project
from apps.core.errors import ServiceError
from apps.training.pool import READY, REASONS, describe_open
from apps.training.recipes import read_recipe
from apps.training.room import Outlook, look_ahead
from apps.training.selection import read_selection
from apps.training.services import preview_readiness


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """How many trajectories are ready, and (words, number) for those that are not; or why nobody can say."""

    n_ready: int = 0
    others: tuple[tuple[str, int], ...] = ()
    n_open: int = 0
    open_words: str = ""  # what makes the open ones ready
    problem: str = ""


def read_readiness(project: Project, *, recipe: dict[str, Any], selection: dict[str, Any]) -> Readiness:
    """Ask the training room."""
    try:
        counts = preview_readiness(project=project, recipe=read_recipe(recipe), selection=read_selection(selection))
    except ServiceError as error:
        return Readiness(problem=error.message)
    others = tuple((words, counts[reason]) for reason, words in REASONS.items() if counts.get(reason))
    n_open = counts.get("open", 0)
    return Readiness(n_ready=counts.get(READY, 0), others=others, n_open=n_open, open_words=describe_open())


def read_outlook(project: Project, *, recipe: dict[str, Any]) -> Outlook | None:
    """Ask the training room what a run would take; None while the settings are wrong, which the form says."""
    try:
        return look_ahead(project, read_recipe(recipe))
    except ServiceError:
        return None
