"""Which steps of runs need their files no longer: those that are neither among the newest nor the best of their run.

Reads only. Whether an engine, an alias or a check still needs a version is the registry's to say.
"""

from collections.abc import Collection, Iterator

import structlog
from django.db.models import Count, Q

from apps.core.errors import InvalidInput
from apps.training.models import Batch, BatchState, Run, RunState
from apps.training.recipes import RecipeConfig, read_recipe

log = structlog.get_logger(__name__)

SIGNS = {"loss": -1, "reward_mean": 1}  # of the metrics of keep_best: whether more is better

HELD = Q(state=BatchState.TRAINED, version__given_up_at=None)


def list_outdated() -> Iterator[Batch]:
    """Yield the trained batches, of all runs, whose files their run does not ask to keep; a policy's with its version.

    Never those whose version a run that goes on, or that may be resumed, began with: its trainer reads it again.
    """
    starts = set(Run.objects.exclude(state=RunState.SUCCEEDED).values_list("start_version_id", flat=True))
    is_held = Q(batches__state=BatchState.TRAINED, batches__version__given_up_at=None)
    for run in Run.objects.annotate(n_held=Count("batches", filter=is_held)).filter(n_held__gt=1).order_by("pk"):
        recipe = _find_recipe(run)
        if recipe is not None and run.n_held > recipe.own("keep_versions"):
            yield from _list_outdated_of(run, recipe, starts=starts)


def _find_recipe(run: Run) -> RecipeConfig | None:
    """Return the run's recipe, None for one of an earlier release that is refused by now: its files are kept."""
    try:
        return read_recipe(run.recipe)
    except InvalidInput as error:
        log.warning("retention.unreadable_recipe", run=run.pk, reason=error.message)
        return None


def _list_outdated_of(run: Run, recipe: RecipeConfig, *, starts: Collection[str]) -> Iterator[Batch]:
    held = list(run.batches.filter(HELD).select_related("version__policy").order_by("step"))
    kept = {batch.step for batch in held[-int(recipe.own("keep_versions")) :]}
    if recipe.keep_best != "none":
        kept |= _find_best(run, {batch.step for batch in held}, by=recipe.keep_best)
    yield from (batch for batch in held if batch.step not in kept and batch.version_id not in starts)


def _find_best(run: Run, steps: Collection[int], *, by: str) -> set[int]:
    """Return the best of these steps, the newer of equals. The best so far is always among those that are held."""
    points = run.metrics.filter(step__in=steps).order_by("pk").values_list("step", "values")
    known = {step: SIGNS[by] * values[by] for step, values in points if by in values}
    return {max(known, key=lambda step: (known[step], step))} if known else set()
