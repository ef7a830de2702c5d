"""Finds the trajectory and the parent step of a call: the database's side of `sessions.py`. Writes no step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from apps.accounts.models import Agent, ApiKey
from apps.trajectories import sessions
from apps.trajectories.calls import Call, UnreadableExchange, recognise_side_call
from apps.trajectories.messages import make_title
from apps.trajectories.models import ExchangeStatus, SideCall, Step, Trajectory
from apps.trajectories.querysets import StepQuerySet
from apps.trajectories.sessions import Candidate, Story
from apps.trajectories.trie import load_messages

RETRY_WINDOW = timedelta(minutes=2)
MAX_CANDIDATES = 20  # the latest; older ones with the same short answer are not worth the reads


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a call belongs. `scope` is the name under which later calls will look for its steps.

    `trajectory` is None for a call that starts a session of its own. `replaces`: the step of a failed call that this
    one repeats.
    """

    scope: str
    trajectory: Trajectory | None
    parent_id: str | None = None
    side_call: SideCall = SideCall.NONE
    replaces: str | None = None
    session_key: str = ""
    is_late: bool = False


def find_place(call: Call, *, agent: Agent, key: ApiKey | None) -> Place:
    """Return the call's place. The trajectory, when there is one, is locked until the transaction ends."""
    if call.exchange.trajectory_id:
        return _place_in_named_trajectory(call, agent=agent)
    if call.exchange.session_key and key is not None:
        return _place_in_named_session(call, agent=agent, key=key)
    return _place_by_content(call, scope=call.exchange.key_id)


def start_trajectory(call: Call, place: Place, *, agent: Agent, key: ApiKey | None) -> Trajectory:
    """Open the trajectory of a call that starts a session of its own."""
    return Trajectory.objects.create(
        project_id=agent.project_id,
        agent=agent,
        key=key,
        session_key=place.session_key,
        title=make_title(call.messages),
        started_at=call.exchange.started_at,
        last_step_at=call.exchange.ended_at,
    )


def _place_in_named_trajectory(call: Call, *, agent: Agent) -> Place:
    trajectory = (
        Trajectory.objects.select_for_update()
        .filter(pk=call.exchange.trajectory_id, project_id=agent.project_id)
        .first()
    )
    if trajectory is None:
        raise UnreadableExchange(f"its trajectory {call.exchange.trajectory_id} no longer exists")
    is_late = not sessions.is_open_at(completed_at=trajectory.completed_at, moment=call.exchange.ended_at)
    place = Place(scope=trajectory.id, trajectory=trajectory, is_late=is_late)
    return _find_parent_in(place, call)


def _place_in_named_session(call: Call, *, agent: Agent, key: ApiKey) -> Place:
    name = call.exchange.session_key
    trajectory = (
        Trajectory.objects.select_for_update()
        .open_at(call.exchange.ended_at)
        .filter(agent=agent, key=key, session_key=name)
        .order_by("-id")
        .first()
    )
    if trajectory is None:
        return Place(scope=_session_scope(key, name), trajectory=None, session_key=name, side_call=_side_call(call))
    place = _find_parent_in(Place(scope=_session_scope(key, name), trajectory=trajectory, session_key=name), call)
    is_unknown = place.parent_id is None and place.side_call == SideCall.NONE
    if is_unknown and call.is_session_named_by_client and _is_beside_main_chain(call, trajectory):
        return replace(place, side_call=SideCall.OTHER)
    return place


def _session_scope(key: ApiKey, name: str) -> str:
    return f"{key.id} {name}"


def _is_beside_main_chain(call: Call, trajectory: Trajectory) -> bool:
    """Say whether the session has a main chain, and this call has other system text or tools than it."""
    main = Step.objects.filter(trajectory=trajectory, side_call=SideCall.NONE)
    return main.exists() and not main.filter(chain=call.chain).exists()


def _find_parent_in(place: Place, call: Call) -> Place:
    """Find the parent inside a trajectory that the call named."""
    among = Step.objects.filter(trajectory=place.trajectory)
    replaced = _find_replaced(call, scope=place.scope, among=among)
    if replaced is not None:
        parent_id = replaced.parent_id
    else:
        parent = sessions.find_parent(
            place.scope, story=call.story, lookup=partial(_look_up, among=among), is_scope_one_session=True
        )
        parent_id = parent.step_id if parent else None
    return replace(place, parent_id=parent_id, side_call=_side_call(call), replaces=replaced.id if replaced else None)


def _place_by_content(call: Call, *, scope: str) -> Place:
    """Find the step that an unnamed call goes on from, among those of the same key."""
    among = Step.objects.in_trajectories_open_at(call.exchange.ended_at)
    replaced = _find_replaced(call, scope=scope, among=among)
    if replaced is not None:
        return Place(
            scope=scope,
            trajectory=_lock(replaced.trajectory_id),
            parent_id=replaced.parent_id,
            replaces=replaced.id,
            side_call=_side_call(call),
        )
    parent = sessions.find_parent(
        scope, story=call.story, lookup=partial(_look_up, among=among), is_scope_one_session=False
    )
    if parent is None:
        return Place(scope=scope, trajectory=None, side_call=_side_call(call))
    trajectory_id = Step.objects.values_list("trajectory_id", flat=True).get(pk=parent.step_id)
    return Place(scope=scope, trajectory=_lock(trajectory_id), parent_id=parent.step_id, side_call=_side_call(call))


def _lock(trajectory_id: str) -> Trajectory:
    return Trajectory.objects.select_for_update().get(pk=trajectory_id)


def _side_call(call: Call) -> SideCall:
    return recognise_side_call(call.messages)


def _find_replaced(call: Call, *, scope: str, among: StepQuerySet) -> Step | None:
    """Return the step of the call that this one repeats: the same body, shortly after it failed."""
    steps = among.found_by([sessions.scoped(scope, sessions.BODY, call.body_digest)]).filter(
        ended_at__gte=call.exchange.started_at - RETRY_WINDOW, ended_at__lte=call.exchange.ended_at
    )
    if not call.retry_count:  # A client that counts its retries may have missed an answer that we think it got.
        steps = steps.exclude(status=ExchangeStatus.COMPLETE)
    return steps.order_by("-started_at", "-id").first()


def _look_up(digests: Sequence[str], *, among: StepQuerySet) -> list[Candidate]:
    steps = list(among.found_by(digests).order_by("-started_at", "-id")[:MAX_CANDIDATES])
    gone_on_from = Step.objects.gone_on_from([step.id for step in steps]) if len(steps) > 1 else set()
    return [
        Candidate(
            step_id=step.id,
            trajectory_id=step.trajectory_id,
            order=step.id,
            is_leaf=step.id not in gone_on_from,
            load_story=partial(_load_story, step.id),
            digests=frozenset(step.answer_digests),
        )
        for step in steps
    ]


def _load_story(step_id: str) -> Story:
    return sessions.read_story(load_messages(step_id))
