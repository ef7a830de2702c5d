"""What the calls of a conversation have in common is kept once, and each call comes back as it was."""

import asyncio
import json
import os
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from apps.core.contracts.arrays import pack_ids
from apps.core.contracts.exchange import ExchangeRecord
from apps.core.ids import first_id, new_id
from apps.gateway.database import connect
from apps.trajectories import stems as stems_module
from apps.trajectories.bulk.running import purge_deleted
from apps.trajectories.bulk.services import UNDO_FOR
from apps.trajectories.exchange_log import StoredAnswer, find_answers, insert_exchanges
from apps.trajectories.known_stems import read_stems
from apps.trajectories.models import Exchange, Stem, Trajectory
from apps.trajectories.months import next_month
from apps.trajectories.recorder import fold_pending
from apps.trajectories.retention import drop_calls
from apps.trajectories.stems import SHARED, Cut, Stems, join, make_stem
from apps.trajectories.trie import load_steps
from tests.apps.gateway.test_spool import make_record
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory, chat_response

WORDS = "".join(f"{n} is not {n + 1}. " for n in range(2000))  # 34 KB that Zstandard does not make nothing of
KEPT = "SELECT octet_length(request), octet_length(response) FROM trajectories_exchange ORDER BY id"


def make_turns(n: int, *, words: str = WORDS, **fields: Any) -> list[ExchangeRecord]:
    """Return the calls of a conversation: each sends what was said before and a little more, behind it its tools."""
    turns = []
    for turn in range(1, n + 1):
        messages = [{"role": "system", "content": words}, *({"role": "user", "content": f"{n}"} for n in range(turn))]
        form = {"messages": messages, "tools": [{"type": "function", "function": {"name": "look", "about": words}}]}
        record = make_record(
            request=json.dumps({"model": "default", **form, "stream": False}).encode(),
            chat_request=json.dumps(form).encode(),
            prompt_token_ids=pack_ids([*range(3000), *range(turn)]),
            response_id=f"resp_{turn}",
            response=json.dumps({"id": f"resp_{turn}", "output": f"answer {turn}", "tools": form["tools"]}).encode(),
            **fields,
        )
        turns.append(record)
    return turns


def write(*groups: Sequence[ExchangeRecord], conversation: str = "c") -> None:
    """Write each group in a statement, all on one connection."""

    async def write_all() -> None:
        async with await connect() as writing:
            for group in groups:
                conversations = dict.fromkeys((record.id for record in group), conversation)
                await insert_exchanges(writing, group, conversations=conversations)

    asyncio.run(write_all())


def read(names: Iterable[str] = SHARED) -> dict[str, list[bytes]]:
    return {row.id: [getattr(row, name) for name in names] for row in Exchange.objects.all()}


def given_of(records: Iterable[ExchangeRecord]) -> dict[str, list[bytes]]:
    return {record.id: [getattr(record, name) for name in SHARED] for record in records}


def count_kept() -> list[tuple[int, int]]:
    """Return how many bytes each call's own row has of its request and of its answer."""
    with connection.cursor() as cursor:
        cursor.execute(KEPT)
        return [(request, answer) for request, answer in cursor.fetchall()]


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=20), st.binary(max_size=60))
def test_what_is_cut_is_joined_again(start: bytes, new: bytes, old: bytes, end: bytes) -> None:
    text, of = start + new + end, start + old + end
    [head], [rest] = (found := stems_module._cut_all((text,), make_stem((of,)))).heads, found.rests
    assert rest is not None
    assert len(rest) <= len(new)
    assert join(head + rest, of) == text


@pytest.mark.parametrize("group_size", [1, 3, 10])
def test_calls_of_a_conversation_share_a_stem_and_come_back_as_they_were(
    transactional_db: None, group_size: int
) -> None:
    turns = make_turns(10)
    write(*(turns[at : at + group_size] for at in range(0, 10, group_size)))

    assert read() == given_of(turns)
    (whole, *cut), stems = count_kept(), list(Stem.objects.all())
    assert whole[0] > 5000
    assert max(request + answer for request, answer in cut) < 500
    [stem] = stems
    assert [getattr(stem, name) for name in SHARED] == given_of(turns[:1])[turns[0].id]


def test_what_says_much_that_is_new_is_kept_whole_and_is_the_next_stem(transactional_db: None) -> None:
    turns, later = make_turns(2), make_turns(2, words=WORDS[::-1])
    write(*([turn] for turn in [*turns, *later]))

    assert read() == given_of([*turns, *later])
    assert [request > 1000 for request, _ in count_kept()] == [True, False, True, False]
    assert Stem.objects.count() == 2


def test_nothing_is_shared_between_keys_or_conversations(transactional_db: None) -> None:
    one, two = make_turns(1), make_turns(1, key_id="key_2")
    other = make_turns(1)
    write(one, two)
    write(other, conversation="d")

    assert read() == given_of([*one, *two, *other])
    assert not Stem.objects.exists()


@pytest.mark.parametrize("conversation", ["", "c"])
def test_short_calls_and_those_of_no_conversation_are_kept_whole(transactional_db: None, conversation: str) -> None:
    turns = make_turns(3, words="a few") if conversation else make_turns(3)
    turns = [make_record(request=turn.request) for turn in turns]
    write(turns, conversation=conversation)

    assert not Stem.objects.exists()


def test_another_connection_takes_no_stem_for_granted(transactional_db: None) -> None:
    """It may lead to a server that was set back to a time before."""
    turns = make_turns(4)
    write(turns[:2])
    Stem.objects.all().delete()
    write(turns[2:])

    kept = {row.id: row.request for row in Exchange.objects.filter(pk__in=[t.id for t in turns[2:]])}
    assert kept == {turn.id: turn.request for turn in turns[2:]}


def test_a_stem_serves_calls_of_its_own_month_and_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    stems, texts, later = Stems(), (os.urandom(9000),), first_id("exch", next_month(timezone.now()))
    first = stems.cut(texts, exchange_id=new_id("exch"), conversation="c")
    assert isinstance(first, stems_module.Stem)
    cut = stems.cut(texts, exchange_id=new_id("exch"), conversation="c")
    assert isinstance(cut, Cut)
    assert cut.stem is first
    # A stem of the old month is not for it.
    assert isinstance(stems.cut(texts, exchange_id=later, conversation="c"), stems_module.Stem)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3700)
    assert isinstance(stems.cut(texts, exchange_id=new_id("exch"), conversation="c"), stems_module.Stem)


def test_an_answer_whose_request_was_cut_is_found_as_it_was(transactional_db: None) -> None:
    turns = make_turns(3)
    write(turns)

    async def find() -> dict[str, StoredAnswer]:
        async with await connect() as asking:
            return await find_answers(asking, ["resp_1", "resp_3"], project_id="proj_1")

    assert asyncio.run(find()) == {
        turn.response_id: StoredAnswer(turn.request, turn.response or b"", turn.chat_request, None, turn.status)
        for turn in (turns[0], turns[2])
    }


def test_the_recorder_folds_them_like_any_other(transactional_db: None) -> None:
    key = ApiKeyFactory.create()
    names = {"project_id": key.agent.project_id, "agent_id": key.agent_id, "key_id": key.id, "dialect": "chat"}
    answer = {"content": "fine"}
    turns = [
        make_record(
            **names,
            session_key="",
            request=json.dumps({"model": "default", "messages": messages}).encode(),
            response=chat_response(answer),
            prompt_token_ids=pack_ids(range(3000 + 10 * n)),
            completion_token_ids=(pack_ids([1, 2]),),
            completion_logprobs=(b"\0\0\0\0" * 2,),
            is_exact=True,
        )
        for n, messages in enumerate(_grow(answer, n_turns=4))
    ]
    write(*([turn] for turn in turns))
    assert Exchange.objects.exclude(stem=None).count() == 3

    fold_pending()
    assert not Exchange.objects.set_aside().exists()
    views = load_steps(Trajectory.objects.get())
    assert [view.messages for view in views] == list(_grow(answer, n_turns=4))
    assert [len(view.prompt_ids) for view in views] == [3000, 3010, 3020, 3030]


def test_a_stem_that_was_read_is_not_read_again(
    transactional_db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    turns = make_turns(3)
    write(*([turn] for turn in turns))
    read_stems(first := list(Exchange.objects.order_by("id")))
    with django_assert_num_queries(1):
        read_stems(again := list(Exchange.objects.order_by("id")))
        assert [exchange.request for exchange in again] == [turn.request for turn in turns]
    assert first[0].stem is None
    assert again[1].stem is again[2].stem is first[1].stem


def _grow(answer: dict[str, Any], *, n_turns: int) -> Iterable[list[dict[str, Any]]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": WORDS}]
    for turn in range(n_turns):
        messages = [*messages, {"role": "user", "content": f"turn {turn}"}]
        yield messages
        messages = [*messages, {"role": "assistant", **answer}]


def old_calls(n: int) -> list[ExchangeRecord]:
    """Return calls of one conversation that were made long before UNDO_FOR was over."""
    began = timezone.now() - 2 * UNDO_FOR
    turns = make_turns(n)
    ids = [first_id("exch", began + timedelta(seconds=place)) for place in range(n)]
    return [make_record(id=pk, request=turn.request) for pk, turn in zip(ids, turns, strict=True)]


def test_a_stem_goes_with_the_last_of_its_calls(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    began = timezone.now() - 2 * UNDO_FOR
    monkeypatch.setattr(stems_module, "new_id", lambda prefix: first_id(prefix, began))
    calls = old_calls(3)
    write(calls)
    for call, is_left in ((calls[1], True), (calls[2], False)):
        delete_for_good(call.id)
        assert Stem.objects.exists() == is_left
    assert read(["request"]) == {calls[0].id: [calls[0].request]}


def delete_for_good(exchange_id: str) -> None:
    trajectory = TrajectoryFactory.create(deleted_at=timezone.now() - 2 * UNDO_FOR)
    StepFactory.create(trajectory=trajectory, exchange_id=exchange_id)
    assert purge_deleted() == 1
    assert not Exchange.objects.filter(pk=exchange_id).exists()


def test_stems_go_with_the_month_of_their_calls(made_months: None) -> None:
    month = next_month(timezone.now() + timedelta(days=70))
    for moment in (month - timedelta(days=3), month):
        Stem.objects.create(id=first_id("stem", moment), request=b"x")

    drop_calls(before=month)
    assert list(Stem.objects.values_list("id", flat=True)) == [first_id("stem", month)]
