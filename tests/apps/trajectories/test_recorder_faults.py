"""Whatever is in the ledger, folding goes on: what cannot be a step is set aside, and trouble with Postgres waits."""

import json
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from django.db import InterfaceError, OperationalError, ProgrammingError, connection
from pytest_django import DjangoAssertNumQueries

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey
from apps.core.ids import new_id
from apps.trajectories import recorder
from apps.trajectories.calls import Call
from apps.trajectories.folding import FoldedCall, fold_calls
from apps.trajectories.inbox import retry_call
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.recorder import fold_agent, fold_pending
from apps.trajectories.trie import load_steps
from tests.factories.accounts import ApiKeyFactory, MembershipFactory
from tests.factories.trajectories import ExchangeFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(("asked", "kept"), [(10**17, 2**31 - 1), (1e300, 2**31 - 1), (-(10**12), -1), ("x", -1)])
def test_a_number_that_no_column_holds_costs_no_step(key: ApiKey, asked: object, kept: int) -> None:
    ExchangeFactory.create(key=key, sampling=json.dumps({"top_k": asked}).encode())
    fold_pending()
    assert Step.objects.get().top_k == kept


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dialect": "klingon"}, "dialect"),
        ({"request": b"\xff{"}, "not JSON"),
        ({"request": b"[" * 100_000}, "not JSON"),
        ({"request": b'{"messages": 3}'}, "not a list"),
        ({"response": b"{}"}, "no choices"),
        ({"response": b'{"choices": [{"index": 0}]}'}, "no message"),
        ({"agent_id": "agnt_gone"}, "no longer exists"),
        ({"project_id": "proj_gone"}, "no longer exists"),
        ({"trajectory_id": "traj_gone"}, "no longer exists"),
    ],
)
def test_a_poisonous_exchange_is_set_aside_and_blocks_nobody(key: ApiKey, fields: dict[str, Any], reason: str) -> None:
    bad = ExchangeFactory.create(key=key, **fields)
    good = ExchangeFactory.create(key=key)
    assert fold_pending() == 2
    bad.refresh_from_db()
    assert bad.folded_at
    assert reason in bad.fold_error
    assert Step.objects.get().exchange_id == good.id
    assert fold_pending() == 0


def test_what_was_set_aside_can_be_tried_again(key: ApiKey) -> None:
    bad = ExchangeFactory.create(key=key, dialect="klingon")
    fold_pending()
    Exchange.objects.filter(pk=bad.pk).update(dialect="chat")
    owner = MembershipFactory.create(team=key.agent.project.team).user
    retry_call(caller=Caller(user=owner), exchange_id=bad.id)  # and it is folded at once
    assert Step.objects.get().exchange_id == bad.id


def test_an_unexpected_error_is_set_aside_too(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, good = ExchangeFactory.create_batch(2, key=key)

    def stumble(calls: Sequence[Call]) -> list[FoldedCall]:
        if bad in [call.exchange for call in calls]:
            raise ZeroDivisionError("\x00 oops \ud800")
        return fold_calls(calls)

    monkeypatch.setattr(recorder, "fold_calls", stumble)
    assert fold_pending() == 2
    bad.refresh_from_db()
    assert "ZeroDivisionError" in bad.fold_error
    assert Step.objects.get().exchange_id == good.id


def run_sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize(
    ("error", "statement"),
    [
        (OperationalError, ""),
        (InterfaceError, ""),
        (ProgrammingError, "SELECT * FROM not_migrated_yet"),
        (OperationalError, "DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"),
        (OperationalError, "DO $$ BEGIN RAISE EXCEPTION 'shut down' USING ERRCODE = '57P01'; END $$"),
    ],
)
def test_trouble_with_postgres_is_nobodys_poison(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch, error: type[Exception], statement: str
) -> None:
    exchange = ExchangeFactory.create(key=key)

    def fall(_calls: Sequence[Call]) -> list[FoldedCall]:
        if statement:
            run_sql(statement)
        raise error("server closed the connection unexpectedly")

    monkeypatch.setattr(recorder, "fold_calls", fall)
    with pytest.raises(error):
        fold_pending()
    exchange.refresh_from_db()
    assert exchange.folded_at is None
    assert exchange.fold_error == ""


def test_a_deadlock_is_settled_by_folding_one_by_one(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    ExchangeFactory.create_batch(3, key=key)
    n_calls = 0

    def collide(calls: Sequence[Call]) -> list[FoldedCall]:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            run_sql("DO $$ BEGIN RAISE EXCEPTION 'deadlock' USING ERRCODE = '40P01'; END $$")
        return fold_calls(calls)

    monkeypatch.setattr(recorder, "fold_calls", collide)
    assert fold_pending() == 3
    assert Step.objects.count() == 3
    assert not Exchange.objects.set_aside().exists()


@pytest.mark.parametrize("text", ["nul \x00 inside", "half \ud800 a pair", "x" * 300_000, "emoji 🦀", "", " \n\t "])
def test_any_text_is_folded(key: ApiKey, text: str) -> None:
    ExchangeFactory.create(key=key, messages=[user(text)], answers=[{"content": text}])
    fold_pending()
    (view,) = load_steps(Trajectory.objects.get())
    assert view.messages == [user(text)]
    assert view.answer["content"] == text


@pytest.mark.parametrize("message", [None, 3, "text", [], {}, {"role": 5, "content": {"a": 1}}, {"tool_calls": 7}])
def test_odd_messages_are_folded(key: ApiKey, message: Any) -> None:
    ExchangeFactory.create(key=key, messages=[message, user("x")])
    fold_pending()
    assert load_steps(Trajectory.objects.get())[0].messages == [message, user("x")]


def test_another_projects_trajectory_is_no_place_for_a_call(key: ApiKey, other_key: ApiKey) -> None:
    theirs = TrajectoryFactory.create(agent=other_key.agent)
    exchange = ExchangeFactory.create(key=key, trajectory_id=theirs.id)
    fold_pending()
    exchange.refresh_from_db()
    assert "no longer exists" in exchange.fold_error
    assert not Step.objects.exists()


def test_an_unknown_version_is_no_reason_to_lose_a_call(key: ApiKey) -> None:
    ExchangeFactory.create(key=key, version_id=new_id("ver"))
    fold_pending()
    assert Step.objects.get().version is None


def make_crowd(n: int) -> list[ApiKey]:
    """Return keys of so many agents, each with two calls that wait."""
    keys = [ApiKeyFactory.create() for _ in range(n)]
    history = [user("first"), {"role": "assistant", "content": "hi"}, user("second")]
    for n_said in (1, 3):
        for key in keys:
            ExchangeFactory.create(key=key, messages=history[:n_said], session_key="main")
    return keys


def test_calls_of_many_agents_take_few_statements(django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    keys = make_crowd(20)
    with django_assert_max_num_queries(20 + 20):  # of each key it is noted, once a minute, that it was used
        assert fold_pending() == 40
    assert [key.agent.trajectories.get().steps.count() for key in keys] == [2] * 20


def test_of_many_agents_one_with_poison_holds_up_no_other() -> None:
    keys = make_crowd(3)
    poison = ExchangeFactory.create(key=keys[1], request=b"{", session_key="main")
    late = ExchangeFactory.create(key=keys[1], messages=[user("third")], session_key="main")

    assert fold_pending() == 8

    assert list(Exchange.objects.set_aside().values_list("id", flat=True)) == [poison.id]
    assert [key.agent.trajectories.get().steps.count() for key in keys] == [2, 3, 2]
    assert Step.objects.filter(exchange_id=late.id).exists()


def test_an_agent_that_another_recorder_has_is_passed_over() -> None:
    keys = make_crowd(3)
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"fold {keys[1].agent_id}"])
        assert fold_pending() == 4
        assert fold_agent(keys[1].agent_id, wait_s=0) == 0
    assert fold_pending() == 2
    assert [key.agent.trajectories.get().steps.count() for key in keys] == [2] * 3


def test_a_key_of_another_agent_makes_no_session_of_this_one(key: ApiKey, other_key: ApiKey) -> None:
    """The ledger's ids are no foreign keys: what they say is looked at."""
    ExchangeFactory.create(key=key, messages=[user("a")], session_key="main")
    ExchangeFactory.create(key=key, messages=[user("b")], session_key="main", key_id=other_key.id)

    assert fold_pending() == 2
    assert sorted(Trajectory.objects.values_list("key_id", "n_steps"), key=str) == [(key.id, 1), (None, 1)]


def write_line(key: ApiKey, *, n_calls: int) -> list[Exchange]:
    """Write the calls of one session, as many as take several transactions."""
    return [ExchangeFactory.create(key=key, session_key="main", messages=[user(str(at))]) for at in range(n_calls)]


@pytest.mark.django_db(transaction=True)
def test_a_later_batch_of_an_agent_waits_as_well(key: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    write_line(key, n_calls=4)
    monkeypatch.setattr(recorder, "BATCH", 2)
    lock_agent = recorder.lock_agent
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"fold {key.agent_id}"])

        def lock_agent_and_end_the_others_work(agent_id: str, *, wait_s: float) -> bool:
            is_free = lock_agent(agent_id, wait_s=wait_s)
            other.execute("SELECT pg_advisory_unlock_all()")
            return is_free

        monkeypatch.setattr(recorder, "lock_agent", lock_agent_and_end_the_others_work)
        assert fold_pending() == 0
        assert fold_pending() == 4
    assert [step.index for step in Step.objects.order_by("exchange_id")] == [0, 1, 2, 3]


@pytest.mark.django_db(transaction=True)
def test_what_another_recorder_folded_after_it_was_read_is_left_alone(
    key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = write_line(key, n_calls=4)
    monkeypatch.setattr(recorder, "BATCH", 2)
    read_calls = recorder._read_calls

    def read_as_another_folds(ids: Sequence[str]) -> list[Call]:
        found = read_calls(ids)
        Exchange.objects.filter(pk=calls[2].pk).update(folded_at=calls[2].ended_at)
        return found

    monkeypatch.setattr(recorder, "_read_calls", read_as_another_folds)
    assert fold_pending() == 3
    assert not Step.objects.filter(exchange_id=calls[2].id).exists()


@pytest.mark.parametrize(
    ("n_agents", "text", "waits"), [(1, "short", "off"), (2, "short", "off"), (1, "x" * 2000, "on")]
)
def test_a_commit_waits_for_the_disk_only_for_what_is_kept_in_memory(n_agents: int, text: str, waits: str) -> None:
    for _ in range(n_agents):
        messages = [{"role": "system", "content": text}, user("hello")]
        ExchangeFactory.create(key=ApiKeyFactory.create(), messages=messages)
    run_sql("SET LOCAL synchronous_commit TO local")
    fold_pending()
    assert read_setting("synchronous_commit") == waits


def test_who_asked_for_a_call_is_told_of_it_when_it_is_on_the_disk(key: ApiKey) -> None:
    ExchangeFactory.create(key=key)
    run_sql("SET LOCAL synchronous_commit TO local")
    assert fold_agent(key.agent_id) == 1
    assert read_setting("synchronous_commit") == "local"


def read_setting(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return str(cursor.fetchone()[0])
