"""Finds the trajectory and the parent step of a call: the database's side of `sessions.py`. Writes no step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from apps.accounts.models import Agent, ApiKey
from apps.trajectories import lineage, sessions
from apps.trajectories.calls import Call, UnreadableExchange
from apps.trajectories.messages import make_title
from apps.trajectories.models import SideCall, Step, Trajectory
from apps.trajectories.querysets import StepQuerySet
from apps.trajectories.sessions import Candidate, Story
from apps.trajectories.shared_rows import SharedRows
from apps.trajectories.side_calls import is_quoted, is_rewritten_retry, recognise_side_call
from apps.trajectories.token_index import load_token_index
from apps.trajectories.trie import load_messages

RETRY_WINDOW = timedelta(minutes=2)
NOTICED_WITHIN = timedelta(seconds=1)  # the gateway may hear that a client is gone after it tries again
MAX_CANDIDATES = 20  # older ones with the same short answer are not worth the reads


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


def find_place(call: Call, *, agent: Agent, key: ApiKey | None, shared: SharedRows) -> Place:
    """Return the call's place. The trajectory, when there is one, is locked until the transaction ends."""
    if call.exchange.trajectory_id:
        place = _place_in_named_trajectory(call, agent=agent, shared=shared)
    elif call.exchange.session_key and key is not None:
        place = _place_in_named_session(call, agent=agent, key=key, shared=shared)
    else:
        place = _place_by_content(call, key=key)
    if place.trajectory_id is not None:
        place = replace(place, trajectory=shared.lock_trajectory(place.trajectory_id))
    if place.trajectory is not None:
        lineage.join_parent(place.trajectory, call, side_call=place.side_call)
    return place


def start_trajectory(call: Call, place: Place, *, agent: Agent, key: ApiKey | None, shared: SharedRows) -> Trajectory:
    """Open the trajectory of a call that starts a session of its own."""
    trajectory = Trajectory(
        project_id=agent.project_id,
        agent=agent,
        key=key,
        session_key=place.session_key,
        title=make_title(call.messages),
        started_at=call.exchange.started_at,
        last_step_at=call.exchange.ended_at,
    )
    trajectory.parent = lineage.find_parent(trajectory, call, side_call=place.side_call)
    shared.add_trajectory(trajectory)
    return trajectory


def _place_in_named_trajectory(call: Call, *, agent: Agent, shared: SharedRows) -> Place:
    trajectory = (
        Trajectory.objects.select_for_update()
        .filter(pk=call.exchange.trajectory_id, project_id=agent.project_id)
        .first()
    )
    if trajectory is None:
        raise UnreadableExchange(f"its trajectory {call.exchange.trajectory_id} no longer exists")
    trajectory = shared.take_locked(trajectory)
    is_late = not sessions.is_open_at(completed_at=trajectory.completed_at, moment=call.exchange.ended_at)
    return _find_parent_in(Place(scope=trajectory.id, trajectory=trajectory, is_late=is_late), call)


def _place_in_named_session(call: Call, *, agent: Agent, key: ApiKey, shared: SharedRows) -> Place:
    name = call.exchange.session_key
    scope = f"{key.id} {name}"
    trajectory = (
        Trajectory.objects.select_for_update()
        .open_at(call.exchange.ended_at)
        .filter(agent=agent, key=key, session_key=name)
        .order_by("-id")
        .first()
    )
    if trajectory is None:
        return Place(scope=scope, session_key=name, side_call=_recognise(call))
    trajectory = shared.take_locked(trajectory)
    place = _find_parent_in(Place(scope=scope, trajectory=trajectory, session_key=name), call)
    is_unknown = place.parent_id is None and place.side_call == SideCall.NONE and not call.marks.is_turn
    if is_unknown and call.marks.is_session_named_by_client and _is_beside_main_chain(call, trajectory):
        return replace(place, side_call=SideCall.OTHER)
    return place


def _is_beside_main_chain(call: Call, trajectory: Trajectory) -> bool:
    """Say whether the session has a main chain, and this call has other system text or tools than it."""
    main = Step.objects.filter(trajectory=trajectory, side_call=SideCall.NONE)
    return main.exists() and not main.filter(chain=call.chain).exists()


def _find_parent_in(place: Place, call: Call) -> Place:
    """Find the parent inside a trajectory that the call named."""
    if call.is_in_tokens and place.trajectory is not None:
        node = load_token_index(place.trajectory).find_parent(bytes(call.exchange.prompt_token_ids or b""))
        return replace(place, parent_id=node.step_id if node else None)
    among = Step.objects.filter(trajectory=place.trajectory)
    if call.marks.previous_response_id:
        named = among.filter(response_id=call.marks.previous_response_id).for_placing().first()
        if named is not None:
            return _go_on_from(place, _as_candidate(named), call)
    pool = _Pool(among, likely=_likely_digests(call, scope=place.scope))
    retry = _find_retry(place, call, pool=pool)
    if retry is not None:
        return retry
    parent = sessions.find_parent(place.scope, story=call.story, lookup=pool.look_up, is_scope_one_session=True)
    return _go_on_from(place, parent, call)


def _place_by_content(call: Call, *, key: ApiKey | None) -> Place:
    """Find the step that an unnamed call goes on from, among those of the same key."""
    place = Place(scope=call.exchange.key_id)
    among = Step.objects.in_trajectories_open_at(call.exchange.ended_at)
    if key is not None and call.marks.previous_response_id:
        named = among.filter(response_id=call.marks.previous_response_id, trajectory__key=key)
        if (step := named.for_placing().first()) is not None:
            return _go_on_from(place, _as_candidate(step), call)
    pool = _Pool(among, likely=_likely_digests(call, scope=place.scope))
    retry = _find_retry(place, call, pool=pool)
    if retry is not None:
        return retry
    parent = sessions.find_parent(place.scope, story=call.story, lookup=pool.look_up, is_scope_one_session=False)
    if parent is not None:
        return _go_on_from(place, parent, call)
    place = replace(place, side_call=_recognise(call))
    if place.side_call in lineage.BACKGROUND:
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
    """The steps among which a call's place is sought. Those that are most likely asked for are read in one go."""

    def __init__(self, among: StepQuerySet, *, likely: Sequence[str]) -> None:
        self._among = among
        self._likely = frozenset(likely)
        self._read = self._query(likely)

    def find(self, digests: Sequence[str]) -> list[Step]:
        """Return the steps that have any of the digests, leaves first, then the latest; at most MAX_CANDIDATES."""
        if self._likely.issuperset(digests) and len(self._read) < MAX_CANDIDATES:
            return [step for step in self._read if not set(digests).isdisjoint(step.answer_digests)]
        return self._query(digests)

    def look_up(self, digests: Sequence[str]) -> list[Candidate]:
        """Return the same as the session rule sees them."""
        return [_as_candidate(step) for step in self.find(digests)]

    def _query(self, digests: Sequence[str]) -> list[Step]:
        return list(self._among.found_by(digests).for_placing()[:MAX_CANDIDATES])


def _likely_digests(call: Call, *, scope: str) -> list[str]:
    failed = sessions.scoped(scope, _repeated_kind(call), call.body_digest)
    return [failed, *sessions.state_digests(scope, call.story)]


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
    same_body = pool.find([sessions.scoped(scope, _repeated_kind(call), call.body_digest)])
    repeated = _failed_before(call, same_body)
    if repeated or not is_rewritten_retry(call.messages):
        return repeated[0] if repeated else None
    cut_short = sessions.scoped(scope, sessions.CUT, call.story.stem())
    unanswered = sessions.scoped(scope, sessions.STEM, call.story.stem())
    for step in _failed_before(call, pool.find([cut_short, unanswered])):
        if cut_short in step.answer_digests or is_quoted(load_messages(step.id), call.messages):
            return step
    return None


def _failed_before(call: Call, steps: Sequence[Step]) -> list[Step]:
    """Return those of the steps that ended just before the call began, the latest first.

    The same prompt may be sampled many times side by side: a retry begins when the call before has ended.
    """
    earliest, latest = call.exchange.started_at - RETRY_WINDOW, call.exchange.started_at + NOTICED_WITHIN
    found = [step for step in steps if earliest <= step.ended_at <= latest]
    return sorted(found, key=lambda step: (step.started_at, step.id), reverse=True)


def _as_candidate(step: Step) -> Candidate:
    return Candidate(
        step_id=step.id,
        trajectory_id=step.trajectory_id,
        order=step.id,
        is_leaf=getattr(step, "is_leaf", False),
        chain=step.chain,
        side_call=step.side_call,
        load_story=partial(_load_story, step.id),
        digests=frozenset(step.answer_digests),
    )


def _load_story(step_id: str) -> Story:
    return sessions.read_story(load_messages(step_id))
