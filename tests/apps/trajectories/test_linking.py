"""Every call that real clients were seen to send is linked to its true parent, and no two sessions become one.

As the clients mark them, each run with a key of its own; and as the hardest case, all runs side by side through one key
without any mark.
"""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

import pytest
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.apps.trajectories.captures import (
    CapturedCall,
    interleave,
    read_captures,
    read_samples,
    read_truths,
    with_equal_answers,
    with_unique_call_ids,
    without_marks,
)
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory, chat_response

pytestmark = pytest.mark.django_db


def keys_by_run(calls: Iterable[CapturedCall], agent: Agent) -> dict[str, ApiKey]:
    return {run: ApiKeyFactory.create(agent=agent) for run in sorted({call.run for call in calls})}


def write_exchange(call: CapturedCall, *, key: ApiKey) -> Exchange:
    """Write what the gateway would have written of the call."""
    started_at = timezone.now() - timedelta(hours=1) + timedelta(seconds=call.at)
    is_chat = call.dialect == "chat"
    return ExchangeFactory.create(
        key=key,
        dialect=call.dialect,
        request=call.request,
        chat_request=None if is_chat else json.dumps(call.chat_request).encode(),
        chat_response=None if is_chat or not call.answer else chat_response(call.answer),
        session_key=call.session_key,
        header=call.headers,
        response_id=call.response_id,
        answers=[call.answer] if call.answer else [],
        status=ExchangeStatus.COMPLETE if call.answer else ExchangeStatus.ERROR,
        started_at=started_at,
        ended_at=started_at + timedelta(milliseconds=50),
        **({} if call.answer else {"response": None}),
    )


def fold_calls(calls: Iterable[CapturedCall], keys: ApiKey | dict[str, ApiKey]) -> dict[str, Step]:
    """Play the calls into the ledger, fold them, and return each call's step."""
    names: dict[str, str] = {}
    for call in calls:
        key = keys if isinstance(keys, ApiKey) else keys[call.run]
        names[write_exchange(call, key=key).id] = call.name
    while fold_pending():
        pass
    assert not Exchange.objects.set_aside().exists()
    steps = Step.objects.select_related("parent", "trajectory__parent")
    return {names[step.exchange_id]: step for step in steps}


def misplaced(calls: Iterable[CapturedCall], steps: dict[str, Step], *, is_marked: bool) -> list[str]:
    """Return, in words, every call that hangs on another step than its client meant."""
    names = {step.exchange_id: name for name, step in steps.items()}
    wrong = []
    for call in calls:
        truth = call.truth
        if truth.failed:
            continue
        parent = steps[call.name].parent
        found = names[parent.exchange_id] if parent else None
        meant = truth.parent if truth.parent in steps else truth.nearest
        if truth.needs_mark and not is_marked:
            meant = None
        if found != meant:
            wrong.append(f"{call.name} hangs on {found}, not on {meant}")
    return wrong


def joined(steps: dict[str, Step]) -> list[set[str | None]]:
    """Return the sessions that share a trajectory."""
    truths = read_truths()
    sessions: dict[str, set[str | None]] = {}
    for name, step in steps.items():
        sessions.setdefault(step.trajectory_id, set()).add(truths[name].session)
    return [found for found in sessions.values() if len(found) > 1]


def split(steps: dict[str, Step]) -> list[str]:
    """Return the sessions that lie in more than one trajectory."""
    truths = read_truths()
    trajectories: dict[str | None, set[str]] = {}
    for name, step in steps.items():
        trajectories.setdefault(truths[name].session, set()).add(step.trajectory_id)
    return [str(session) for session, found in trajectories.items() if len(found) > 1]


def test_the_captures_hold_what_this_test_is_about() -> None:
    truths = read_truths()
    assert {name for name, truth in truths.items() if not truth.is_lost} == set(read_samples())
    calls = read_captures(with_lost=False)
    follow_ups = [call.truth for call in calls if call.truth.parent]
    assert (len(calls), len(follow_ups)) == (125, 65)
    assert sum("/lost-" in str(truth.parent) for truth in follow_ups) == 14
    assert Counter(call.dialect for call in calls) == {"chat": 70, "responses": 35, "messages": 20}


@pytest.mark.parametrize("with_lost", [False, True])
def test_every_marked_call_finds_its_parent_and_its_session(agent: Agent, with_lost: bool) -> None:
    calls = read_captures(with_lost=with_lost, change=with_unique_call_ids)
    steps = fold_calls(calls, keys_by_run(calls, agent))
    assert misplaced(calls, steps, is_marked=True) == []
    assert joined(steps) == []
    assert split(steps) == []


@pytest.mark.parametrize("with_lost", [False, True])
def test_every_unmarked_call_finds_its_parent_among_all_runs_side_by_side(key: ApiKey, with_lost: bool) -> None:
    calls = read_captures(with_lost=with_lost, change=with_unique_call_ids)
    calls = [without_marks(call) for call in interleave(calls)]
    steps = fold_calls(calls, key)
    assert misplaced(calls, steps, is_marked=False) == []
    assert joined(steps) == []


def test_short_equal_answers_join_no_sessions(key: ApiKey) -> None:
    calls = [without_marks(call) for call in interleave(read_captures(change=with_equal_answers))]
    steps = fold_calls(calls, key)
    assert misplaced(calls, steps, is_marked=False) == []
    assert joined(steps) == []


def test_calls_beside_the_conversation_are_labelled(agent: Agent) -> None:
    calls = read_captures(change=with_unique_call_ids)
    steps = fold_calls(calls, keys_by_run(calls, agent))
    found = {name: step.side_call for name, step in steps.items() if step.side_call}
    assert found == {call.name: call.truth.side for call in calls if call.truth.side}


def test_sub_agents_hang_on_the_session_that_started_them(agent: Agent) -> None:
    calls = read_captures(change=with_unique_call_ids)
    steps = fold_calls(calls, keys_by_run(calls, agent))
    truths = read_truths()
    found = {
        truths[name].session: {truths[other].session for other, step in steps.items() if step.trajectory_id == parent}
        for name, step in steps.items()
        if (parent := step.trajectory.parent_id)
    }
    meant = {call.truth.session: {call.truth.started_by} for call in calls if call.truth.started_by}
    assert found == meant


def test_compactions_are_counted_as_the_client_counts_them(agent: Agent) -> None:
    calls = read_captures(change=with_unique_call_ids)
    steps = fold_calls(calls, keys_by_run(calls, agent))
    assert {name: step.epoch for name, step in steps.items()} == {
        call.name: call.truth.epoch for call in calls if call.name in steps
    }


def test_a_call_that_failed_makes_no_step(agent: Agent) -> None:
    calls = [call for call in read_captures() if call.run == "openclaw-faults"]
    steps = fold_calls(calls, keys_by_run(calls, agent))
    assert [call.truth.failed for call in calls] == [True, True, False]
    assert set(steps) == {calls[-1].name}
    assert Trajectory.objects.get().has_error


def test_twins_with_the_same_tool_call_ids_each_keep_a_line_of_their_own(key: ApiKey) -> None:
    """Runs that are equal to the letter cannot be told apart; still no step gets the follow-ups of two of them."""
    calls = [without_marks(call) for call in interleave(read_captures())]
    steps = fold_calls(calls, key)
    runs = {call.name: call.run for call in calls}
    children: dict[str, list[str]] = {}
    for name, step in steps.items():
        if step.parent_id and not step.side_call:
            children.setdefault(step.parent_id, []).append(name)
    assert [found for found in children.values() if len({runs[name] for name in found}) > 1] == []
    linked = {name for found in children.values() for name in found}
    meant = {call.name for call in calls if call.truth.parent and not call.truth.side and not call.truth.needs_mark}
    assert meant - linked == set()
