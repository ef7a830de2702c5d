"""Finds the trajectory and the parent step of a call: the database's side of `sessions.py`. Writes no step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from apps.accounts.models import Agent, ApiKey
from apps.trajectories import lineage, sessions
from apps.trajectories.calls import Call, UnreadableExchange
from apps.trajectories.known_steps import Among
from apps.trajectories.messages import Message, make_title
from apps.trajectories.models import SideCall, Step, Trajectory
from apps.trajectories.sessions import Candidate
from apps.trajectories.shared_rows import SharedRows
from apps.trajectories.side_calls import is_quoted, is_rewritten_retry, recognise_side_call
from apps.trajectories.token_index import load_token_index

RETRY_WINDOW = timedelta(minutes=2)
NOTICED_WITHIN = timedelta(seconds=1)  # the gateway may hear that a client is gone after it tries again
_MAX_LOCKED_AHEAD = 200  # equal conversations may be many, and only one of them is meant


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a call belongs. `scope` is the name under which later calls will look for its steps.

    `trajectory` is None for a call that starts a session of its own; `trajectory_id` names one that is still to be
    locked. `replaces`: the step of a failed call that this one repeats.
    """

    scope: str
    trajectory: Trajectory | None = None
    trajectory_id: str | None = None
    parent_id: str | None = None
    side_call: SideCall = SideCall.NONE
    replaces: str | None = None
    session_key: str = ""
    is_late: bool = False


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who a call came from. `key` is None when it is gone."""

    agent: Agent
    key: ApiKey | None


def read_ahead(calls: Sequence[tuple[Call, Caller]], *, shared: SharedRows) -> None:
    """Read and lock in a few queries what placing these calls will most likely ask for."""
    if not calls:
        return
    agent_ids = {caller.agent.id for _, caller in calls}
    named = {call.exchange.trajectory_id for call, _ in calls if call.exchange.trajectory_id}
    sessions_named = {_session_of(call) for call, caller in calls if _is_session_named(call, caller)}
    shared.lock_trajectories(named)
    shared.lock_sessions(sessions_named, agent_ids=agent_ids, since=min(call.exchange.ended_at for call, _ in calls))
    states: set[str] = set()
    failed: set[str] = set()
    for call, caller in calls:
        if not call.is_in_tokens:
            scope = _scope_of(call, caller)
            states.update(sessions.state_digests(scope, call.story))
            failed.add(_failed_digest(call, scope=scope))
    steps = [step for step in shared.steps.read_ahead(states | failed) if not states.isdisjoint(step.answer_digests)]
    if len(steps) <= _MAX_LOCKED_AHEAD:
        shared.lock_trajectories(step.trajectory_id for step in steps)
        shared.contexts.read_ahead(step.id for step in steps)


def _session_of(call: Call) -> tuple[str, str]:
    return call.exchange.key_id, call.exchange.session_key


def _is_session_named(call: Call, caller: Caller) -> bool:
    return bool(call.exchange.session_key) and not call.exchange.trajectory_id and caller.key is not None


def _scope_of(call: Call, caller: Caller) -> str:
    """Return the name under which the call's steps are found: its trajectory, its session, else its key."""
    if call.exchange.trajectory_id:
        return call.exchange.trajectory_id
    return " ".join(_session_of(call)) if _is_session_named(call, caller) else call.exchange.key_id


def find_place(call: Call, caller: Caller, *, shared: SharedRows) -> Place:
    """Return the call's place. The trajectory, when there is one, is locked until the transaction ends."""
    if call.exchange.trajectory_id:
        place = _place_in_named_trajectory(call, caller, shared=shared)
    elif _is_session_named(call, caller):
        place = _place_in_named_session(call, caller, shared=shared)
    else:
        place = _place_by_content(call, caller, shared=shared)
    if place.trajectory_id is not None:
        place = replace(place, trajectory=shared.lock_trajectory(place.trajectory_id))
    if place.trajectory is not None and place.trajectory.parent_id is None and call.marks.parent_session:
        shared.flush()
        lineage.join_parent(place.trajectory, call, side_call=place.side_call)
    return place


def start_trajectory(call: Call, place: Place, caller: Caller, *, shared: SharedRows) -> Trajectory:
    """Open the trajectory of a call that starts a session of its own."""
    trajectory = Trajectory(
        project_id=caller.agent.project_id,
        agent=caller.agent,
        key=caller.key,
        session_key=place.session_key,
        title=make_title(call.messages),
        started_at=call.exchange.started_at,
        last_step_at=call.exchange.ended_at,
    )
    if lineage.may_have_parent(call, side_call=place.side_call):
        shared.flush()
        trajectory.parent = lineage.find_parent(trajectory, call, side_call=place.side_call)
    shared.add_trajectory(trajectory)
    return trajectory


def _place_in_named_trajectory(call: Call, caller: Caller, *, shared: SharedRows) -> Place:
    trajectory = shared.find_trajectory(call.exchange.trajectory_id, project_id=caller.agent.project_id)
    if trajectory is None:
        raise UnreadableExchange(f"its trajectory {call.exchange.trajectory_id} no longer exists")
    is_late = not sessions.is_open_at(completed_at=trajectory.completed_at, moment=call.exchange.ended_at)
    place = Place(scope=trajectory.id, trajectory=trajectory, is_late=is_late)
    return _find_parent_in(place, trajectory, call, shared=shared)


def _place_in_named_session(call: Call, caller: Caller, *, shared: SharedRows) -> Place:
    name, scope = call.exchange.session_key, _scope_of(call, caller)
    trajectory = shared.find_session(_session_of(call), agent=caller.agent, moment=call.exchange.ended_at)
    if trajectory is None:
        return Place(scope=scope, session_key=name, side_call=_recognise(call))
    place = Place(scope=scope, trajectory=trajectory, session_key=name)
    place = _find_parent_in(place, trajectory, call, shared=shared)
    is_unknown = place.parent_id is None and place.side_call == SideCall.NONE and not call.marks.is_turn
    if is_unknown and call.marks.is_session_named_by_client:
        shared.flush()
        if _is_beside_main_chain(call, trajectory):
            return replace(place, side_call=SideCall.OTHER)
    return place


def _is_beside_main_chain(call: Call, trajectory: Trajectory) -> bool:
    """Say whether the session has a main chain, and this call has other system text or tools than it."""
    main = Step.objects.filter(trajectory=trajectory, side_call=SideCall.NONE)
    return main.exists() and not main.filter(chain=call.chain).exists()


def _find_parent_in(place: Place, trajectory: Trajectory, call: Call, *, shared: SharedRows) -> Place:
    """Find the parent inside a trajectory that the call named."""
    if call.is_in_tokens:
        shared.flush()
        node = load_token_index(trajectory).find_parent(bytes(call.exchange.prompt_token_ids or b""))
        return replace(place, parent_id=node.step_id if node else None)
    pool = _Pool(shared, Among(trajectory_id=trajectory.id))
    if call.marks.previous_response_id:
        named = shared.steps.find_by_response(call.marks.previous_response_id, among=pool.among)
        if named is not None:
            return _go_on_from(place, pool.as_candidate(named), call)
    retry = _find_retry(place, call, pool=pool)
    if retry is not None:
        return retry
    parent = sessions.find_parent(place.scope, story=call.story, lookup=pool.look_up, is_scope_one_session=True)
    return _go_on_from(place, parent, call)


def _place_by_content(call: Call, caller: Caller, *, shared: SharedRows) -> Place:
    """Find the step that an unnamed call goes on from, among those of the same key."""
    place = Place(scope=_scope_of(call, caller))
    pool = _Pool(shared, Among(open_at=call.exchange.ended_at))
    if caller.key is not None and call.marks.previous_response_id:
        key_id = caller.key.id
        named = shared.steps.find_by_response(call.marks.previous_response_id, among=pool.among, key_id=key_id)
        if named is not None:
            return _go_on_from(place, pool.as_candidate(named), call)
    retry = _find_retry(place, call, pool=pool)
    if retry is not None:
        return retry
    parent = sessions.find_parent(place.scope, story=call.story, lookup=pool.look_up, is_scope_one_session=False)
    if parent is not None:
        return _go_on_from(place, parent, call)
    place = replace(place, side_call=_recognise(call))
    if place.side_call in lineage.BACKGROUND:
        shared.flush()
        session = lineage.find_traced_session(call)
        return replace(place, trajectory_id=session.id if session else None)
    return place


def _go_on_from(place: Place, parent: Candidate | None, call: Call) -> Place:
    """Return the place behind `parent`, in its trajectory; at the root when there is none."""
    side_call = _recognise(call)
    if parent is None:
        return replace(place, side_call=side_call)
    if side_call == SideCall.NONE and parent.side_call and parent.chain == call.chain:
        side_call = SideCall(parent.side_call)  # It goes on beside the main chain.
    return replace(place, trajectory_id=parent.trajectory_id, parent_id=parent.step_id, side_call=side_call)


def _recognise(call: Call) -> SideCall:
    return recognise_side_call(call.messages, call.marks)


class _Pool:
    """The steps among which a call's place is sought, as the session rule sees them."""

    def __init__(self, shared: SharedRows, among: Among) -> None:
        self._shared = shared
        self.among = among

    def find(self, digests: Sequence[str]) -> list[Step]:
        """Return the steps that have any of the digests, leaves first, then the latest."""
        return self._shared.steps.find(digests, among=self.among)

    def look_up(self, digests: Sequence[str]) -> list[Candidate]:
        """Return the same as candidates."""
        return [self.as_candidate(step) for step in self.find(digests)]

    def load_messages(self, step_id: str) -> Sequence[Message]:
        """Return the messages that went into the step."""
        return self._shared.find_context(step_id).messages[:-1]

    def as_candidate(self, step: Step) -> Candidate:
        """Return the step as the session rule sees it."""
        return Candidate(
            step_id=step.id,
            trajectory_id=step.trajectory_id,
            order=step.id,
            is_leaf=self._shared.steps.is_leaf(step),
            chain=step.chain,
            side_call=step.side_call,
            parent_id=step.parent_id,
            is_excluded=step.is_excluded,
            load_story=lambda: sessions.read_story(self.load_messages(step.id)),
            digests=frozenset(step.answer_digests),
        )


def _failed_digest(call: Call, *, scope: str) -> str:
    """Return what the step of a call that this one repeats would be found by."""
    return sessions.scoped(scope, _repeated_kind(call), call.body_digest)


def _repeated_kind(call: Call) -> str:
    # A client that counts its retries may have missed an answer that we think it got.
    return sessions.BODY if call.marks.retry_count else sessions.FAILED


def _find_retry(place: Place, call: Call, *, pool: _Pool) -> Place | None:
    """Return the place of a call that repeats one which failed: the same as that one's."""
    failed = _find_replaced(call, scope=place.scope, pool=pool)
    if failed is None:
        return None
    return replace(
        place,
        trajectory_id=failed.trajectory_id,
        parent_id=failed.parent_id,
        side_call=SideCall(failed.side_call),
        replaces=failed.id,
    )


def _find_replaced(call: Call, *, scope: str, pool: _Pool) -> Step | None:
    """Return the step of the call that this one repeats, shortly after it failed."""
    same_body = pool.find([_failed_digest(call, scope=scope)])
    repeated = _failed_before(call, same_body)
    if repeated or not is_rewritten_retry(call.messages):
        return repeated[0] if repeated else None
    cut_short = sessions.scoped(scope, sessions.CUT, call.story.stem())
    unanswered = sessions.scoped(scope, sessions.STEM, call.story.stem())
    for step in _failed_before(call, pool.find([cut_short, unanswered])):
        if cut_short in step.answer_digests or is_quoted(pool.load_messages(step.id), call.messages):
            return step
    return None


def _failed_before(call: Call, steps: Sequence[Step]) -> list[Step]:
    """Return those of the steps that ended just before the call began, the latest first.

    The same prompt may be sampled many times side by side: a retry begins when the call before has ended.
    """
    earliest, latest = call.exchange.started_at - RETRY_WINDOW, call.exchange.started_at + NOTICED_WITHIN
    found = [step for step in steps if earliest <= step.ended_at <= latest]
    return sorted(found, key=lambda step: (step.started_at, step.id), reverse=True)
