"""Follow-up calls of real clients are linked to their true parents, and no two sessions become one.

All clients speak through one key and give no marks, which is the hardest case.
"""

from collections.abc import Iterable

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, ExchangeStatus, Step
from apps.trajectories.recorder import fold_pending
from tests.apps.trajectories.captures import (
    CapturedCall,
    interleave,
    read_captures,
    with_equal_answers,
    with_unique_call_ids,
)
from tests.factories.trajectories import ExchangeFactory, chat_request

pytestmark = pytest.mark.django_db

Name = tuple[str, int]


def fold_calls(calls: Iterable[CapturedCall], key: ApiKey) -> dict[Name, Step]:
    """Play the calls into the ledger, fold them, and return each call's step (its first choice)."""
    names: dict[str, Name] = {}
    for call in calls:
        exchange = ExchangeFactory.create(
            key=key,
            request=chat_request(call.body["messages"], **{k: v for k, v in call.body.items() if k != "messages"}),
            header=call.headers,
            answers=[call.answer] * call.body.get("n", 1) if call.answer else [],
            status=ExchangeStatus.COMPLETE if call.answer else ExchangeStatus.ERROR,
            **({} if call.answer else {"response": None}),
        )
        names[exchange.id] = call.name
    while fold_pending():
        pass
    assert not Exchange.objects.set_aside().exists()
    steps = Step.objects.filter(choice=0).select_related("parent", "trajectory")
    return {names[step.exchange_id]: step for step in steps}


def misplaced(calls: Iterable[CapturedCall], steps: dict[Name, Step]) -> list[str]:
    """Return, in words, every call that hangs on another parent than its client meant."""
    names = {step.exchange_id: name for name, step in steps.items()}
    wrong = []
    for call in calls:
        if call.answer is None:
            continue
        parent = steps[call.name].parent
        found = names[parent.exchange_id] if parent else None
        if call.is_parent_captured:
            meant = (call.run, call.parent) if call.parent else None
            if found != meant:
                wrong.append(f"{call.name} hangs on {found}, not on {meant}")
        elif found is not None and found[0] != call.run:
            wrong.append(f"{call.name} hangs on {found}, of another run")
    return wrong


def joined(steps: dict[Name, Step]) -> list[set[str]]:
    """Return the runs that share a trajectory."""
    runs: dict[str, set[str]] = {}
    for (run, _), step in steps.items():
        runs.setdefault(step.trajectory_id, set()).add(run)
    return [found for found in runs.values() if len(found) > 1]


def test_the_captures_hold_what_this_test_is_about() -> None:
    calls = read_captures()
    assert len(calls) == 70
    assert sum(call.parent is not None and call.is_parent_captured for call in calls) == 28


def test_every_follow_up_finds_its_parent(key: ApiKey) -> None:
    calls = [with_unique_call_ids(call) for call in read_captures()]
    steps = fold_calls(calls, key)
    assert misplaced(calls, steps) == []
    assert joined(steps) == []


def test_runs_side_by_side_stay_apart(key: ApiKey) -> None:
    calls = [with_unique_call_ids(call) for call in interleave(read_captures())]
    steps = fold_calls(calls, key)
    assert misplaced(calls, steps) == []
    assert joined(steps) == []


def test_twins_with_the_same_tool_call_ids_each_keep_a_line_of_their_own(key: ApiKey) -> None:
    """Runs that are equal to the letter cannot be told apart; still no step gets the follow-ups of two of them."""
    partial = {call.run for call in read_captures() if not call.is_parent_captured}
    calls = [call for call in interleave(read_captures()) if call.run not in partial]
    steps = fold_calls(calls, key)
    children: dict[str, list[Name]] = {}
    for name, step in steps.items():
        if step.parent_id and not step.side_call:
            children.setdefault(step.parent_id, []).append(name)
    crowded = [found for found in children.values() if len({run for run, _ in found}) > 1]
    assert crowded == []
    linked = {name for found in children.values() for name in found}
    assert {call.name for call in calls if call.parent} - linked == set()


def test_short_equal_answers_join_no_sessions(key: ApiKey) -> None:
    calls = [with_equal_answers(with_unique_call_ids(call)) for call in interleave(read_captures())]
    steps = fold_calls(calls, key)
    assert misplaced(calls, steps) == []
    assert joined(steps) == []
