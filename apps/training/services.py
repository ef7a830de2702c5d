"""What people do with runs: launch, cancel, resume. Leases and attempts have files of their own."""

from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.tasks import TRAIN_RUN
from apps.core.errors import Conflict, InvalidInput
from apps.core.jobs import queue_task
from apps.core.texts import is_storable
from apps.feedback.preferences.models import Preference
from apps.registry.models import Alias, AliasName, Policy, Version
from apps.training.attempts import RESUMED, move_run
from apps.training.choices import POLICY_GRADIENT, UNPAIRED
from apps.training.estimators import BaselineState, Scored, are_all_zero, compute_advantages
from apps.training.history import record_run_event
from apps.training.label_pool import LabelPool
from apps.training.lending import view_pool, whole_groups
from apps.training.models import ACTIVE_STATES, Run, RunState
from apps.training.pool import READY, Pool, describe_counts
from apps.training.recipes import RecipeConfig, read_recipe
from apps.training.room import check_fits, check_possible
from apps.training.selection import Selection, read_selection
from apps.training.tuning import check_tuning
from apps.trajectories.models import Trajectory

PREVIEW = 2000  # trajectories looked at before a launch


@transaction.atomic
def launch_run(
    *,
    project: Project,
    caller: Caller,
    recipe: dict[str, Any],
    selection: dict[str, Any],
    name: str = "",
    idempotency_key: str = "",
) -> Run:
    """Queue a run of the project's policy, starting from what is live. The same idempotency key returns the same run.

    Raises Forbidden (not a trainer), InvalidInput (unknown or ill-fitting settings, nothing to learn from) and Conflict
    (no policy; a run is on already: two would train on one pool towards one `live`; the key launched another run).
    """
    require_role(caller, project, Role.TRAINER)
    config, chosen = read_recipe(recipe), read_selection(selection)
    check_possible(config)
    _check_rewards(config, chosen)
    _check_texts(name=name, idempotency_key=idempotency_key)
    Project.objects.select_for_update().get(pk=project.pk)
    if idempotency_key and (known := Run.objects.filter(project=project, idempotency_key=idempotency_key).first()):
        if (read_recipe(known.recipe), read_selection(known.selection)) != (config, chosen):
            raise Conflict("this idempotency key was used for another run", field="idempotency_key")
        return known
    policy, live = _find_live(project)
    check_tuning(config, live=live)
    check_fits(project, config)
    _refuse_second_run(project)
    check_worth(view_pool(version=live, selection=chosen, recipe=config), config)
    run = Run.objects.create(
        project=project,
        policy=policy,
        start_version=live,
        name=name,
        recipe=config.model_dump(mode="json"),
        selection=chosen.model_dump(mode="json"),
        n_steps=config.n_steps,
        status_line="waits for a worker",
        launched_by=caller.user,
        idempotency_key=idempotency_key,
    )
    record_run_event(run, "run.launched", f"launched by {caller.name} from version {live.number}")
    _queue(run, caller, action="run.launched")
    return run


def _check_rewards(recipe: RecipeConfig, selection: Selection) -> None:
    if recipe.estimator == "maxrl" and (selection.min_reward is None or selection.min_reward < 0):
        raise InvalidInput(
            "selection.min_reward: maxrl is defined for rewards of zero or more; set 0 or more, or choose rloo",
            field="selection.min_reward",
        )


def _check_texts(*, name: str, idempotency_key: str) -> None:
    for field, text in {"name": name, "idempotency_key": idempotency_key}.items():
        if len(text) > 100 or not is_storable(text):
            raise InvalidInput(f"{field} may have at most 100 characters, and no null", field=field)


def _find_live(project: Project) -> tuple[Policy, Version]:
    live = (
        Alias.objects.select_related("policy", "version__policy")
        .filter(policy__project=project, name=AliasName.LIVE)
        .first()
    )
    if live is None:
        raise Conflict(f"the project {project.slug} has no policy yet, so there is nothing to train")
    return live.policy, live.version


def _refuse_second_run(project: Project) -> None:
    active = Run.objects.filter(project=project, state__in=ACTIVE_STATES).first()
    if active is not None:
        raise Conflict(
            f"run {active} ({active.id}) is {active.state} in this project; cancel it or let it finish first"
        )


def check_worth(pool: Pool | LabelPool, recipe: RecipeConfig) -> None:
    """Raise InvalidInput when the pool, as it is now, would teach nothing: empty, no group, or all advantages zero."""
    ready = list(pool.ready()[:PREVIEW])
    if not ready:
        words = describe_counts(pool.count_by_readiness())
        raise InvalidInput(f"nothing is ready to train on: {words}", field="selection")
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


def _queue(run: Run, caller: Caller, *, action: str) -> None:
    record_event(team=run.project.team, actor=caller.name, action=action, object_id=run.id)
    queue_task(TRAIN_RUN, run.id)


@transaction.atomic
def cancel_run(*, run: Run, caller: Caller) -> Run:
    """Ask a run to end; its checkpoint and versions stay. Raises Conflict when it has ended."""
    require_role(caller, run.project, Role.TRAINER)
    run = _lock(run)
    if run.is_final:
        raise Conflict(f"this run has ended already: it is {run.state}")
    if run.state == RunState.QUEUED:
        move_run(run, RunState.CANCELLED)
    elif run.state == RunState.RUNNING:
        run.state, run.status_line = RunState.CANCELLING, "ends after a checkpoint, in a minute at the latest"
        run.save(update_fields=["state", "status_line"])
        record_run_event(run, "run.cancelling", f"{caller.name} asked it to end")
    record_event(team=run.project.team, actor=caller.name, action="run.cancelled", object_id=run.id)
    return run


@transaction.atomic
def resume_run(*, run: Run, caller: Caller) -> Run:
    """Queue a failed or cancelled run again; it goes on from its last checkpoint. Raises Conflict otherwise."""
    require_role(caller, run.project, Role.TRAINER)
    Project.objects.select_for_update().get(pk=run.project_id)
    run = _lock(run)
    if run.state not in (RunState.FAILED, RunState.CANCELLED):
        raise Conflict(f"only a failed or cancelled run can go on; this one is {run.state}")
    _refuse_second_run(run.project)
    run.state, run.error, run.ended_at = RunState.QUEUED, "", None
    run.status_line, run.sent_at = "waits for a worker", timezone.now()
    run.save(update_fields=["state", "error", "ended_at", "status_line", "sent_at"])
    record_run_event(run, RESUMED, f"{caller.name} lets it go on after step {run.steps_done}")
    _queue(run, caller, action="run.resumed")
    return run


def _lock(run: Run) -> Run:
    return Run.objects.select_for_update(of=("self",)).select_related("project__team", "policy").get(pk=run.pk)


def preview_readiness(*, project: Project, selection: Selection, recipe: RecipeConfig) -> dict[str, int]:
    """Return how many trajectories are ready and, by reason, how many are not, for the form that launches a run."""
    _, live = _find_live(project)
    return {READY: 0} | view_pool(version=live, selection=selection, recipe=recipe).count_by_readiness()
