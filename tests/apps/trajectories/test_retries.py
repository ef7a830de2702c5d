"""A call that repeats one which failed takes its place; the same prompt sampled often is no retry."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import ApiKey
from apps.trajectories.models import Exchange, ExchangeStatus, Step, Trajectory
from apps.trajectories.recorder import fold_pending
from tests.factories.trajectories import ExchangeFactory

pytestmark = pytest.mark.django_db

QUEUED = (
    "[Queued user message from a previous active turn; preserved as context only.]\n{}\n\nContinue the current task \
from the existing transcript."
)
TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def at(second: float) -> datetime:
    return timezone.now() - timedelta(minutes=10) + timedelta(seconds=second)


def record(key: ApiKey, begin: float, end: float, *, is_cut: bool = False, **fields: Any) -> Exchange:
    """Write a call that took from `begin` to `end` (seconds); `is_cut`: half an answer came."""
    if is_cut:
        fields |= {"answers": [{"content": "h"}], "completions": [[4]], "status": ExchangeStatus.ABORTED}
    exchange: Exchange = ExchangeFactory.create(key=key, started_at=at(begin), ended_at=at(end), **fields)
    return exchange


def outcome() -> list[tuple[bool, str | None]]:
    """Return, step by step, whether it is kept out and what it goes on from."""
    fold_pending()
    return [(step.is_excluded, step.parent_id) for step in Step.objects.order_by("started_at")]


def test_each_retry_takes_the_place_of_the_one_before(key: ApiKey) -> None:
    for begin, is_cut in ((0, True), (3, True), (9, False)):
        record(key, begin, begin + 2, is_cut=is_cut)
    assert outcome() == [(True, None), (True, None), (False, None)]
    assert Trajectory.objects.count() == 1


def test_a_retry_in_the_middle_of_a_session_stays_there(key: ApiKey) -> None:
    turn = [user("hello"), said("hi"), user("and now?")]
    record(key, 0, 1)
    record(key, 2, 3, messages=turn, is_cut=True)
    record(key, 4, 5, messages=turn)
    (_, first), (is_cut_out, parent), (is_retry_out, same_parent) = outcome()
    assert first is None
    assert (is_cut_out, is_retry_out) == (True, False)
    assert parent == same_parent == Step.objects.earliest("started_at").id


def test_the_same_prompt_sampled_side_by_side_is_no_retry(key: ApiKey) -> None:
    record(key, 0, 9, is_cut=True)
    record(key, 1, 8)
    record(key, 2, 12)
    assert outcome() == [(False, None)] * 3
    assert Trajectory.objects.count() == 3


def test_the_same_prompt_sampled_again_after_an_answer_is_no_retry(key: ApiKey) -> None:
    record(key, 0, 1)
    record(key, 2, 3)
    assert outcome() == [(False, None)] * 2
    assert Trajectory.objects.count() == 2


@pytest.mark.parametrize("is_one_by_one", [False, True])
def test_branches_go_on_from_the_retry_and_not_from_what_it_replaced(key: ApiKey, is_one_by_one: bool) -> None:
    record(key, 0, 1)
    if is_one_by_one:
        fold_pending()
    record(key, 2, 3, header={"x-stainless-retry-count": "1"})
    for second, text in ((4, "and now?"), (6, "or rather?"), (8, "what else?")):
        record(key, second, second + 1, messages=[user("hello"), said("hi"), user(text)])
        if is_one_by_one:
            fold_pending()
    (first_out, _), (retry_out, _), *branches = outcome()
    assert (first_out, retry_out) == (True, False)
    retry = Step.objects.order_by("started_at")[1]
    assert branches == [(False, retry.id)] * 3


@pytest.mark.parametrize("session", ["s", ""])
def test_openclaws_rewritten_retry_takes_the_place_of_the_cut_call(key: ApiKey, session: str) -> None:
    named: dict[str, Any] = {"session_key": session, "header": TRACE}
    record(key, 0, 1, messages=[user("a")], **named)
    record(key, 2, 3, messages=[user("a"), said("hi"), user("say hi")], is_cut=True, **named)
    record(key, 5, 6, messages=[user("a"), said("hi"), user(QUEUED.format("say hi"))], **named)
    first = Step.objects.earliest("started_at").id if fold_pending() else None
    assert outcome() == [(False, None), (True, first), (False, first)]
    assert Trajectory.objects.count() == 1


def test_a_retry_that_only_tells_to_go_on_takes_the_place_of_the_cut_call(key: ApiKey) -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [{"id": "c" * 20, "function": {"name": "look"}}]}
    turn = [user("look"), asked, {"role": "tool", "tool_call_id": "c" * 20, "content": "seen"}]
    record(key, 0, 1, messages=turn[:1], answers=[asked])
    record(key, 2, 3, messages=turn, is_cut=True)
    go_on = user("Continue the current task from the existing transcript, preserving completed work.")
    record(key, 5, 6, messages=[*turn, go_on])
    (_, _), (is_cut_out, parent), (is_retry_out, same_parent) = outcome()
    assert (is_cut_out, is_retry_out) == (True, False)
    assert parent == same_parent is not None


def test_a_rewritten_message_that_follows_no_failure_replaces_nothing(key: ApiKey) -> None:
    record(key, 0, 1, messages=[user("say hi")], session_key="s")
    record(key, 2, 3, messages=[user(QUEUED.format("say hi"))], session_key="s")
    assert outcome() == [(False, None), (False, None)]


def test_an_unmarked_rewritten_retry_replaces_no_other_sessions_call(key: ApiKey) -> None:
    record(key, 0, 1, messages=[user("another session's first words")], is_cut=True)
    record(key, 2, 3, messages=[user(QUEUED.format("say hi"))])
    assert outcome() == [(False, None), (False, None)]
    assert Trajectory.objects.count() == 2
