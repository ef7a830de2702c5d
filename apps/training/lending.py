"""What one step of a run takes out of the pool, its rows locked. The ledger of it is in `leases`."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from apps.accounts.access import Caller
from apps.registry.models import Version
from apps.training.choices import HINDSIGHT
from apps.training.collecting import Facts, Lent, read_step_facts
from apps.training.hindsight import read_hint_facts
from apps.training.label_batches import lend_labelled, read_correction_facts
from apps.training.label_pool import LabelPool
from apps.training.models import Batch, Run
from apps.training.pool import Pool, lock_rows, trace_line
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.selection import Selection, read_selection
from apps.trajectories.blindness import NOTHING, Hidden, find_hidden
from apps.trajectories.models import Trajectory


def open_pool(run: Run) -> Pool | LabelPool:
    """Return the run's view of the pool, as of the version in training; without what whoever launched it reviews blind
    at this moment: what it takes, and what it says it waits for, would tell them."""
    version = current_version(run)
    return view_pool(
        version=version,
        selection=read_selection(run.selection),
        recipe=read_recipe(run.recipe),
        run_id=run.id,
        hidden=find_hidden(Caller(user=run.launched_by), project_id=version.policy.project_id),
    )


def view_pool(
    *, version: Version, selection: Selection, recipe: RecipeConfig, run_id: str = "", hidden: Hidden = NOTHING
) -> Pool | LabelPool:
    """Return what a run with this recipe would see of the pool, but `hidden`; `version` is the one in training."""
    if recipe.learns_from_labels:
        return LabelPool(policy=version.policy, selection=selection, recipe=recipe, run_id=run_id, hidden=hidden)
    line = trace_line(version, max_staleness=int(recipe.own("max_staleness")))
    learns_from_hints = recipe.algorithm == HINDSIGHT
    return Pool(
        policy=version.policy, selection=selection, line=line, learns_from_hints=learns_from_hints, hidden=hidden
    )


def current_version(run: Run) -> Version:
    """Return the version whose weights the trainer holds: the run's last one, or the one it started from."""
    batch = Batch.objects.filter(run=run, version__isnull=False).select_related("version").order_by("-step").first()
    return batch.version if batch is not None and batch.version is not None else run.start_version


def lend_trajectories(pool: Pool | LabelPool, recipe: RecipeConfig) -> Lent | None:
    """Return what one step takes, its rows locked; None when too little is ready."""
    if isinstance(pool, LabelPool):
        return lend_labelled(pool)
    picked = pick_trajectories(pool, recipe)
    if not picked:
        return None
    facts = read_step_facts(picked) if recipe.credit == "step" else {}
    if recipe.algorithm == HINDSIGHT:
        facts = read_hint_facts(picked)
    if recipe.sft_weight is not None:
        corrections = read_correction_facts(picked)
        facts = {
            row.id: replace(facts.get(row.id, Facts()), preferences=corrections.get(row.id, Facts()).preferences)
            for row in picked
        }
    return Lent(trajectories=picked, rewards={row.id: row.reward for row in picked}, facts=facts)


def pick_trajectories(pool: Pool, recipe: RecipeConfig) -> list[Trajectory]:
    """Return enough ready trajectories for one step, locked, by id; [] when there are too few.

    With groups, whole ones only: any `group_size` ready tries at one prompt are a group.
    """
    ready, n_wanted = pool.ready(), recipe.trajectories_per_step
    if not recipe.group_size:
        picked = list(ready.select_for_update(of=("self",), skip_locked=True)[:n_wanted])
        return picked if len(picked) == n_wanted else []
    groups = whole_groups(list(ready.exclude(group="").only("group")), group_size=recipe.group_size)
    ids = [row.id for group in groups[: n_wanted // recipe.group_size] for row in group]
    return lock_rows(ready, ids) if len(ids) == n_wanted else []


def whole_groups(rows: Sequence[Trajectory], *, group_size: int) -> list[list[Trajectory]]:
    """Return the complete groups, in the order in which they were completed."""
    waiting: dict[str, list[Trajectory]] = defaultdict(list)
    whole = []
    for row in rows:
        waiting[row.group].append(row)
        if len(waiting[row.group]) == group_size:
            whole.append(waiting.pop(row.group))
    return whole
