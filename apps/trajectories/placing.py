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
from apps.trajectories.side_calls import is_quoted, is_rewritten_retry, recognise_side_call
from apps.trajectories.token_index import load_token_index
from apps.trajectories.trie import load_messages

RETRY_WINDOW = timedelta(minutes=2)
NOTICED_WITHIN = timedelta(seconds=1)  # the gateway may hear that a client is gone after it tries again
MAX_CANDIDATES = 20  # older ones with the same short answer are not worth the reads


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
        place = _place_in_named_trajectory(call, agent=agent)
    elif call.exchange.session_key and key is not None:
        place = _place_in_named_session(call, agent=agent, key=key)
    else:
        place = _place_by_content(call, key=key)
    if place.trajectory is not None:
        lineage.join_parent(place.trajectory, call, side_call=place.side_call)
    return place


def start_trajectory(call: Call, place: Place, *, agent: Agent, key: ApiKey | None) -> Trajectory:
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
    trajectory.save(force_insert=True)
    return trajectory


def _place_in_named_trajectory(call: Call, *, agent: Agent) -> Place:
    trajectory = (
        Trajectory.objects.select_for_update()
        .filter(pk=call.exchange.trajectory_id, project_id=agent.project_id)
        .first()
    )
    if trajectory is None:
        raise UnreadableExchange(f"its trajectory {call.exchange.trajectory_id} no longer exists")
    is_late = not sessions.is_open_at(completed_at=trajectory.completed_at, moment=call.exchange.ended_at)
    return _find_parent_in(Place(scope=trajectory.id, trajectory=trajectory, is_late=is_late), call)


def _place_in_named_session(call: Call, *, agent: Agent, key: ApiKey) -> Place:
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
        return Place(scope=scope, trajectory=None, session_key=name, side_call=_recognise(call))
    place = _find_parent_in(Place(scope=scope, trajectory=trajectory, session_key=name), call)
    is_unknown = place.parent_id is None and place.side_call == SideCall.NONE
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
    retry = _find_retry(place, call, among=among)
    if retry is not None:
        return retry
    lookup = partial(_look_up, among=among)
    parent = sessions.find_parent(place.scope, story=call.story, lookup=lookup, is_scope_one_session=True)
    return _go_on_from(place, parent, call)


def _place_by_content(call: Call, *, key: ApiKey | None) -> Place:
    """Find the step that an unnamed call goes on from, among those of the same key."""
    place = Place(scope=call.exchange.key_id, trajectory=None)
    among = Step.objects.in_trajectories_open_at(call.exchange.ended_at)
    if key is not None and call.marks.previous_response_id:
        named = Step.objects.filter(response_id=call.marks.previous_response_id, trajectory__key=key)
        if (step := named.for_placing().first()) is not None:
            return _go_on_from(place, _as_candidate(step), call)
    retry = _find_retry(place, call, among=among)
    if retry is not None:
        return retry
    lookup = partial(_look_up, among=among)
    parent = sessions.find_parent(place.scope, story=call.story, lookup=lookup, is_scope_one_session=False)
    if parent is not None:
        return _go_on_from(place, parent, call)
    place = replace(place, side_call=_recognise(call))
    if place.side_call in lineage.BACKGROUND:
        session = lineage.find_traced_session(call)
        return replace(place, trajectory=_lock(session.id) if session else None)
    return place


def _go_on_from(place: Place, parent: Candidate | None, call: Call) -> Place:
    """Return the place behind `parent`, in its trajectory; at the root when there is none."""
    side_call = _recognise(call)
    if parent is None:
        return replace(place, side_call=side_call)
    if side_call == SideCall.NONE and parent.side_call and parent.chain == call.chain:
        side_call = SideCall(parent.side_call)  # It goes on beside the main chain.
    trajectory = place.trajectory or _lock(parent.trajectory_id)
    return replace(place, trajectory=trajectory, parent_id=parent.step_id, side_call=side_call)


def _lock(trajectory_id: str) -> Trajectory:
    return Trajectory.objects.select_for_update().get(pk=trajectory_id)


def _recognise(call: Call) -> SideCall:
    return recognise_side_call(call.messages, call.marks)


def _find_retry(place: Place, call: Call, *, among: StepQuerySet) -> Place | None:
    """Return the place of a call that repeats one which failed: the same as that one's."""
    failed = _find_replaced(call, scope=place.scope, among=among)
    if failed is None:
        return None
    return replace(
        place,
        trajectory=place.trajectory or _lock(failed.trajectory_id),
        parent_id=failed.parent_id,
        side_call=SideCall(failed.side_call),
        replaces=failed.id,
    )


def _find_replaced(call: Call, *, scope: str, among: StepQuerySet) -> Step | None:
    """Return the step of the call that this one repeats, shortly after it failed.

    A client that counts its retries may have missed an answer that we think it got.
    """
    kind = sessions.BODY if call.marks.retry_count else sessions.FAILED
    repeated = _failed_before(call, [sessions.scoped(scope, kind, call.body_digest)], among=among).first()
    if repeated is not None or not is_rewritten_retry(call.messages):
        return repeated
    cut_short = [sessions.scoped(scope, sessions.CUT, call.story.stem())]
    unanswered = [sessions.scoped(scope, sessions.STEM, call.story.stem())]
    for step in _failed_before(call, [*cut_short, *unanswered], among=among)[:MAX_CANDIDATES]:
        if cut_short[0] in step.answer_digests or is_quoted(load_messages(step.id), call.messages):
            return step
    return None


def _failed_before(call: Call, sought: Sequence[str], *, among: StepQuerySet) -> StepQuerySet:
    # The same prompt may be sampled many times side by side: a retry begins when the call before has ended.
    window = (call.exchange.started_at - RETRY_WINDOW, call.exchange.started_at + NOTICED_WITHIN)
    return among.found_by(sought).filter(ended_at__range=window).order_by("-started_at", "-id")


def _look_up(digests: Sequence[str], *, among: StepQuerySet) -> list[Candidate]:
    return [_as_candidate(step) for step in among.found_by(digests).for_placing()[:MAX_CANDIDATES]]


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
