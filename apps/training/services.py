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
from apps.training.attempts import RESUMED, move_run
from apps.training.history import record_run_event
from apps.training.launching import check_rewards, check_worth, find_live, refuse_second_run
from apps.training.lending import view_pool
from apps.training.models import Run, RunState
from apps.training.recipes import read_recipe
from apps.training.room import check_fits, check_possible
from apps.training.selection import read_selection
from apps.training.tuning import check_tuning
from apps.trajectories.blindness import find_hidden


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
    check_rewards(config, chosen)
    _check_texts(name=name, idempotency_key=idempotency_key)
    Project.objects.select_for_update().get(pk=project.pk)
    if idempotency_key and (known := Run.objects.filter(project=project, idempotency_key=idempotency_key).first()):
        if (read_recipe(known.recipe), read_selection(known.selection)) != (config, chosen):
            raise Conflict("this idempotency key was used for another run", field="idempotency_key")
        return known
    policy, live = find_live(project)
    check_tuning(config, live=live)
    check_fits(project, config)
    refuse_second_run(project)
    hidden = find_hidden(caller, project_id=project.pk)
    check_worth(view_pool(version=live, selection=chosen, recipe=config, hidden=hidden), config)
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


def _check_texts(*, name: str, idempotency_key: str) -> None:
    for field, text in {"name": name, "idempotency_key": idempotency_key}.items():
        if len(text) > 100 or not is_storable(text):
            raise InvalidInput(f"{field} may have at most 100 characters, and no null", field=field)


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
    refuse_second_run(run.project)
    run.state, run.error, run.ended_at = RunState.QUEUED, "", None
    run.status_line, run.sent_at = "waits for a worker", timezone.now()
    run.save(update_fields=["state", "error", "ended_at", "status_line", "sent_at"])
    record_run_event(run, RESUMED, f"{caller.name} lets it go on after step {run.steps_done}")
    _queue(run, caller, action="run.resumed")
    return run


def _lock(run: Run) -> Run:
    return Run.objects.select_for_update(of=("self",)).select_related("project__team", "policy").get(pk=run.pk)
