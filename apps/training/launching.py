"""What must be so for a run to be launched, and what a launch would meet now: for the launch itself, and for the form
before it. Reads only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from apps.accounts.models import Project
from apps.core.errors import Conflict, InvalidInput, ServiceError
from apps.feedback.preferences.models import Preference
from apps.registry.models import Alias, AliasName, Policy, Version
from apps.training.choices import HINDSIGHT, POLICY_GRADIENT, PREFERENCE, SFT, UNPAIRED
from apps.training.estimators import BaselineState, Scored, are_all_zero, compute_advantages
from apps.training.label_pool import LabelPool
from apps.training.lending import view_pool, whole_groups
from apps.training.models import ACTIVE_STATES, Run
from apps.training.pool import READY, Pool, describe_counts, describe_open
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.selection import Selection
from apps.training.tuning import check_tuning
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.models import Trajectory

PREVIEW = 2000  # trajectories looked at before a launch
OFFERED = (POLICY_GRADIENT, HINDSIGHT, SFT, PREFERENCE, UNPAIRED)  # what makes versions, the first one first


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a launch would meet now. `counts`: how many trajectories are ready and, by reason, how many are not;
    `refusal`: why it would be refused, "" where nothing speaks against it; `n_there`: how many the steps of the recipe
    could take, which are whole groups where it compares groups; `n_uses`: how often each of them.
    """

    counts: Mapping[str, int]
    refusal: str
    n_there: int
    n_uses: int

    def count_missing(self, recipe: RecipeConfig) -> int:
        """Return for how many more the first step would wait."""
        return max(0, recipe.trajectories_per_step - self.n_there)

    def count_steps(self, recipe: RecipeConfig) -> int:
        """Return for how many steps those that are there are enough."""
        n_taken = recipe.trajectories_per_step
        return self.n_there * self.n_uses // n_taken if self.n_there >= n_taken else 0

    def fit(self, recipe: RecipeConfig) -> RecipeConfig:
        """Return the recipe with the largest size, up to its own, that waits for nothing; where nothing is there, as
        it was."""
        if not self.n_there:
            return recipe
        smaller = recipe.model_copy(update={"trajectories_per_step": min(recipe.trajectories_per_step, self.n_there)})
        return smaller.model_copy(update={"n_steps": min(recipe.n_steps, self.count_steps(smaller))})


def preview_launch(
    *, project: Project, selection: Selection, recipe: RecipeConfig, hidden: Hidden = NOTHING
) -> Preview:
    """Look at the pool as a launch would; what is `hidden` from who looks is left out. Raises Conflict when the project
    has no policy yet."""
    _, live = find_live(project)
    pool = view_pool(version=live, selection=selection, recipe=recipe, hidden=hidden)
    counts = {READY: 0} | pool.count_by_readiness()
    return Preview(
        counts=counts,
        refusal=_find_refusal(pool, recipe, project=project, selection=selection, live=live)
        if counts[READY]
        else "nothing is ready to train on",
        n_there=_count_groups(pool, recipe) * recipe.group_size if recipe.group_size else counts[READY],
        n_uses=int(recipe.own("epochs")) if recipe.learns_from_labels else 1,
    )


def find_algorithm(*, project: Project, selection: Selection, hidden: Hidden = NOTHING) -> str | None:
    """Return the first algorithm by which a run with the usual settings would learn something from the selection now;
    None where none would. Raises Conflict when the project has no policy yet."""
    _, live = find_live(project)
    recipes = (read_recipe({"algorithm": name}) for name in OFFERED)
    pools = ((view_pool(version=live, selection=selection, recipe=one, hidden=hidden), one) for one in recipes)
    return next((recipe.algorithm for pool, recipe in pools if _is_worth_it(pool, recipe)), None)


def _is_worth_it(pool: Pool | LabelPool, recipe: RecipeConfig) -> bool:
    if not pool.ready().exists():  # before all are counted for a refusal in words
        return False
    try:
        check_worth(pool, recipe)
    except InvalidInput:
        return False
    return True


def _count_groups(pool: Pool | LabelPool, recipe: RecipeConfig) -> int:
    rows = list(pool.ready().exclude(group="").only("group")[:PREVIEW])
    return len(whole_groups(rows, group_size=recipe.group_size or 1))


def _find_refusal(
    pool: Pool | LabelPool, recipe: RecipeConfig, *, project: Project, selection: Selection, live: Version
) -> str:
    try:
        check_rewards(recipe, selection)
        check_tuning(recipe, live=live)
        refuse_second_run(project)
        check_worth(pool, recipe)
    except ServiceError as error:
        return error.message.removeprefix(f"{error.field}: ")
    return ""


def check_rewards(recipe: RecipeConfig, selection: Selection) -> None:
    """Raise InvalidInput when the selection has rewards that the estimator is not defined for."""
    if recipe.estimator == "maxrl" and (selection.min_reward is None or selection.min_reward < 0):
        raise InvalidInput(
            "selection.min_reward: maxrl is defined for rewards of zero or more; set 0 or more, or choose rloo",
            field="selection.min_reward",
        )


def find_live(project: Project) -> tuple[Policy, Version]:
    """Return the project's policy and what of it is live. Raises Conflict when there is none."""
    live = (
        Alias.objects.select_related("policy", "version__policy")
        .filter(policy__project=project, name=AliasName.LIVE)
        .first()
    )
    if live is None:
        raise Conflict(f"the project {project.slug} has no policy yet, so there is nothing to train")
    return live.policy, live.version


def refuse_second_run(project: Project) -> None:
    """Raise Conflict when a run is under way."""
    active = Run.objects.filter(project=project, state__in=ACTIVE_STATES).first()
    if active is not None:
        raise Conflict(
            f"run {active} ({active.id}) is {active.state} in this project; cancel it or let it finish first"
        )


def check_worth(pool: Pool | LabelPool, recipe: RecipeConfig) -> None:
    """Raise InvalidInput when the pool, as it is now, would teach nothing: empty, no group, or all advantages zero."""
    ready = list(pool.ready()[:PREVIEW])
    if not ready:
        counts = pool.count_by_readiness()
        words = ", ".join([describe_counts(counts), *([describe_open()] if counts.get("open") else [])])
        blind = "; what you review blind does not count until you have said yours" if pool.hidden else ""
        raise InvalidInput(f"nothing is ready to train on: {words}{blind}", field="selection")
    if recipe.algorithm == POLICY_GRADIENT:
        _check_advantages(ready, recipe)
    if recipe.algorithm == UNPAIRED:
        _check_verdicts(ready, recipe)


def _check_verdicts(ready: list[Trajectory], recipe: RecipeConfig) -> None:
    """Raise InvalidInput when all are good or all are bad; a correction brings both kinds with it."""
    bound = recipe.own("good_above")
    verdicts = {row.reward > bound for row in ready if row.reward is not None}
    if len(verdicts) == 2 or Preference.objects.corrections().filter(trajectory__in=ready).exists():
        return
    kind = "good" if verdicts == {True} else "bad"
    raise InvalidInput(
        f"all {len(ready)} ready trajectories are {kind} (good is a reward above {bound:g}), and there is nothing to "
        "tell them from; label others, move good_above, or choose sft",
        field="recipe.good_above",
    )


def _check_advantages(ready: list[Trajectory], recipe: RecipeConfig) -> None:
    if recipe.group_size:
        groups = whole_groups([row for row in ready if row.group], group_size=recipe.group_size)
        ready = [row for group in groups for row in group]
        if not ready:
            raise InvalidInput(
                f"no group has {recipe.group_size} ready tries at one prompt, so every advantage would be zero; "
                "replay prompts in groups, or choose an estimator that needs none, as ema",
                field="recipe.estimator",
            )
    if recipe.credit == "step" or recipe.overlong_tokens is not None:
        return  # of trajectories that are worth the same, steps may differ, and so may lengths
    scored = [
        Scored(trajectory_id=row.id, reward=row.reward or 0.0, group=row.group, source=row.agent_id) for row in ready
    ]
    advantages, _ = compute_advantages(scored, recipe=recipe, baseline=BaselineState())
    if are_all_zero(advantages.values()):
        raise InvalidInput(
            f"every advantage would be zero: all {len(ready)} rewards equal their baseline; "
            "label trajectories that differ in worth",
            field="selection",
        )
