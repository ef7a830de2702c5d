"""Every change to trajectories but folding: opening, completing, closing the idle, keeping out, rewards. And the way to
find one for a caller. Knows no HTTP."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from apps.accounts.access import Caller, require_enough
from apps.accounts.models import Agent, ApiKey, Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.exchange import UNCAPTURED
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.core.texts import find_fault
from apps.trajectories.models import Channel, Exchange, Step, Trajectory, TrajectoryState
from apps.trajectories.recorder import fold_agent

MAX_METADATA_BYTES = 16_384


def find_trajectory(*, caller: Caller, trajectory_id: str, role: Role = Role.VIEWER) -> Trajectory:
    """Return the trajectory if the caller has `role` in its project. Another team's id looks like a missing one."""
    known = Trajectory.objects.select_related("project__team", "agent")
    trajectory = known.filter(pk=trajectory_id, deleted_at=None).first() if is_id(trajectory_id, "traj") else None
    has = caller.role_in(trajectory.project) if trajectory else None
    if trajectory is None or has is None:
        raise NotFound(f"there is no trajectory {trajectory_id!r}")
    require_enough(caller, has, role)
    return trajectory


def open_trajectory(
    *,
    agent: Agent,
    key: ApiKey | None = None,
    channel: str = Channel.TRAIN,
    group: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Trajectory:
    """Open a trajectory that calls will name by its id."""
    metadata = dict(metadata or {})
    check_metadata(metadata)
    trajectory = Trajectory.objects.create(
        project_id=agent.project_id, agent=agent, key=key, channel=channel, group=group, metadata=metadata
    )
    publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.id)
    return trajectory


def check_metadata(metadata: Mapping[str, Any], *, field: str = "metadata") -> None:
    """Refuse what could be neither stored nor shown again."""
    if fault := find_fault(metadata):
        raise InvalidInput(f"{field}: {fault}", field=field)
    n_bytes = len(json.dumps(metadata))
    if n_bytes > MAX_METADATA_BYTES:
        raise InvalidInput(f"{field} may have {MAX_METADATA_BYTES} bytes; this has {n_bytes}", field=field)


@transaction.atomic
def describe_trajectory(
    *, trajectory: Trajectory, channel: str = "", group: str = "", metadata: Mapping[str, Any] | None = None
) -> Trajectory:
    """Say more of an open trajectory than was known when it was opened: what is given is set, metadata is added to.

    Raises Conflict when it is complete: a run may have leased it as it was.
    """
    row = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    if row.state != TrajectoryState.OPEN:
        raise Conflict(f"the trajectory {row.pk} is complete")
    row.metadata = {**row.metadata, **(metadata or {})}
    check_metadata(row.metadata)
    row.channel, row.group = channel or row.channel, group or row.group
    row.save(update_fields=["channel", "group", "metadata"])
    publish_news(row.project_id, kind="trajectory", object_id=row.pk)
    trajectory.refresh_from_db()
    return trajectory


def find_or_open_session(*, agent: Agent, key: ApiKey, session_key: str, channel: str = Channel.TRAIN) -> Trajectory:
    """Return the newest trajectory of the session that the key names so, complete or not; a new one if there is none.

    `channel` is for a new one.
    """
    named = Trajectory.objects.select_related("project__team", "agent").filter(
        agent=agent, key=key, session_key=session_key
    )
    found = named.order_by("-id").first()
    if found is not None:
        return found
    try:
        with transaction.atomic():
            trajectory = Trajectory.objects.create(
                project_id=agent.project_id, agent=agent, key=key, session_key=session_key, channel=channel
            )
    except IntegrityError:  # another call of the same session was a moment faster
        return named.get()
    publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    return trajectory


def complete_trajectory(*, trajectory: Trajectory) -> Trajectory:
    """Say that nothing more comes. Doing it twice is fine.

    Calls that ended before this moment belong to the trajectory even when they are folded later; they are folded now if
    no recorder is faster.
    """
    changed = Trajectory.objects.filter(pk=trajectory.pk, state=TrajectoryState.OPEN).update(
        state=TrajectoryState.COMPLETE, completed_at=timezone.now()
    )
    fold_agent(trajectory.agent_id)
    if changed:
        publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    trajectory.refresh_from_db()
    return trajectory


def close_idle_trajectories(*, idle_s: float) -> int:
    """Complete the open trajectories in which nothing happened for `idle_s` seconds; returns how many."""
    now = timezone.now()
    idle = Trajectory.objects.idle_since(now - timedelta(seconds=idle_s))
    closed = 0
    for trajectory_id, project_id in idle.values_list("id", "project_id")[:1000]:
        # The filter again: a call may have come in between.
        changed = Trajectory.objects.idle_since(now - timedelta(seconds=idle_s)).filter(pk=trajectory_id)
        if changed.update(state=TrajectoryState.COMPLETE, completed_at=now) == 1:
            closed += 1
            publish_news(project_id, kind="trajectory", object_id=trajectory_id)
    return closed


@transaction.atomic
def set_exclusion(*, trajectory: Trajectory, is_excluded: bool, actor: str) -> Trajectory:
    """Keep a trajectory out of training, or let it in again. Saying the same twice is fine."""
    changed = Trajectory.objects.filter(pk=trajectory.pk, is_excluded=not is_excluded).update(is_excluded=is_excluded)
    if changed:
        action = "trajectory.excluded" if is_excluded else "trajectory.included"
        record_event(team=trajectory.project.team, actor=actor, action=action, object_id=trajectory.pk)
        publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
    trajectory.is_excluded = is_excluded
    return trajectory


@transaction.atomic(savepoint=False)
def set_reward(trajectory: Trajectory, reward: float | None, *, step_rewards: Mapping[str, float] | None) -> None:
    """Store what the labels of a (locked) trajectory add up to, and of its steps likewise; None: they stay."""
    if trajectory.reward != reward:
        trajectory.reward = reward
        Trajectory.objects.filter(pk=trajectory.pk).update(reward=reward)
    if step_rewards is not None:
        _set_step_rewards([trajectory.pk], step_rewards)


@transaction.atomic(savepoint=False)
def set_rewards(rewards: Mapping[str, float | None], *, step_rewards: Mapping[str, float]) -> int:
    """Store what the labels of (locked) trajectories add up to, by id; their steps that are not named have no reward:
    None is not zero. Returns how many trajectories were changed.
    """
    known = Trajectory.objects.filter(pk__in=rewards).only("id", "reward")
    changed = [trajectory for trajectory in known if trajectory.reward != rewards[trajectory.pk]]
    for trajectory in changed:
        trajectory.reward = rewards[trajectory.pk]
    Trajectory.objects.bulk_update(changed, ["reward"], batch_size=500)
    return len({trajectory.pk for trajectory in changed} | _set_step_rewards(list(rewards), step_rewards))


def _set_step_rewards(trajectory_ids: Sequence[str], step_rewards: Mapping[str, float]) -> set[str]:
    """Store them, none for steps that are not named; returns the trajectories in which one was changed."""
    steps = Step.objects.filter(trajectory__in=trajectory_ids).only("id", "reward", "trajectory_id")
    given = steps.filter(Q(reward__isnull=False) | Q(pk__in=list(step_rewards)))
    moved = [step for step in given if step.reward != step_rewards.get(step.pk)]
    for step in moved:
        step.reward = step_rewards.get(step.pk)
    Step.objects.bulk_update(moved, ["reward"], batch_size=500)
    return {step.trajectory_id for step in moved}


def find_step(*, trajectory: Trajectory, step_id: str) -> Step:
    """Return a step of this trajectory."""
    step = Step.objects.filter(pk=step_id, trajectory=trajectory).first() if is_id(step_id, "step") else None
    if step is None:
        raise NotFound(f"the trajectory has no step {step_id!r}")
    return step


def find_step_of(*, caller: Caller, step_id: str, role: Role = Role.VIEWER) -> Step:
    """Return a step by its id if the caller has `role` in its project. Another team's looks like a missing one."""
    known = Step.objects.select_related("trajectory__project__team", "trajectory__agent")
    step = known.filter(pk=step_id, trajectory__deleted_at=None).first() if is_id(step_id, "step") else None
    has = caller.role_in(step.trajectory.project) if step else None
    if step is None or has is None:
        raise NotFound(f"there is no step {step_id!r}")
    require_enough(caller, has, role)
    return step


def find_step_by_response(*, caller: Caller, response_id: str, choice: int = 0, role: Role = Role.VIEWER) -> Step:
    """Return the step of an answer by the id that the agent was given, folding its exchange now if it is still pending.

    Raises NotFound for an id that the caller cannot see, Conflict (with a time to try again) when it cannot be folded.
    """
    exchange = _find_exchange(caller=caller, response_id=response_id)
    if exchange.folded_at is None:
        fold_agent(exchange.agent_id)
    step = (
        Step.objects.select_related("trajectory__project__team", "trajectory__agent")
        .filter(exchange_id=exchange.id, choice=choice)
        .first()
    )
    if step is not None:
        find_trajectory(caller=caller, trajectory_id=step.trajectory_id, role=role)
        return step
    exchange.refresh_from_db()
    if exchange.folded_at is None:
        raise Conflict("this call is not in the pool yet; try again in a second", retry_after_s=1)
    if exchange.fold_error:
        raise Conflict(f"this call could not be put into the pool: {exchange.fold_error}")
    raise NotFound(f"the answer {response_id!r} has no choice {choice}")


def _find_exchange(*, caller: Caller, response_id: str) -> Exchange:
    if UNCAPTURED in response_id:
        raise NotFound("this call was not captured: its agent's capture policy is off, so nothing of it is in the pool")
    is_storable = response_id.isprintable()  # Postgres refuses NUL even in a question.
    found = Exchange.objects.filter(response_id=response_id) if is_storable else Exchange.objects.none()
    for exchange in found.order_by("-id")[:5]:
        project = Project.objects.filter(pk=exchange.project_id).first()
        if project is not None and caller.role_in(project) is not None:
            return exchange
    raise NotFound(f"there is no answer {response_id!r}")
