"""Nothing that a client was told to the end is missing from the pool, or in it twice."""

import asyncio
import dataclasses
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import zstandard
from django.db import connection

from apps.core.contracts.exchange import ExchangeRecord
from apps.gateway import writer as writer_module
from apps.gateway.database import Connection, connect
from apps.gateway.replay import replay_once
from apps.gateway.spool import Spool
from apps.gateway.writer import ExchangeWriter
from apps.trajectories.exchange_log import CHANNEL, StoredAnswer, find_answers, insert_exchanges
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import GatewayServer, chat, wait_until
from tests.apps.gateway.test_spool import make_record
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import Proxy

PATH = "/v1/chat/completions"


async def write(record: ExchangeRecord) -> None:
    async with await connect() as connection:
        await insert_exchanges(connection, [record])


def test_the_record_has_the_tables_columns() -> None:
    columns = {field.attname for field in Exchange._meta.concrete_fields}

    noted = {"folded_at", "folded_choices", "fold_error"}  # by the recorder
    assert {field.name for field in dataclasses.fields(ExchangeRecord)} == columns - noted - {"stem_id"}


def test_a_record_is_written_once(transactional_db: None) -> None:
    record = make_record()

    async def write_twice() -> None:
        async with await connect() as writing:
            await insert_exchanges(writing, [record, make_record()])
            await insert_exchanges(writing, [record])

    asyncio.run(write_twice())
    exchange = Exchange.objects.get(id=record.id)
    assert Exchange.objects.count() == 2
    for field in dataclasses.fields(ExchangeRecord):
        kept, given = getattr(exchange, field.name), getattr(record, field.name)
        kept = bytes(kept) if isinstance(kept, memoryview) else kept
        assert (tuple(map(bytes, kept)) if isinstance(given, tuple) else kept) == given, field.name


def test_the_recorder_is_told_of_all_that_was_written_in_a_moment_at_once(
    transactional_db: None, tmp_path: Path
) -> None:
    async def write_ten() -> list[str]:
        writer = ExchangeWriter(Spool(tmp_path))
        async with await connect() as listening:
            await listening.execute(f"LISTEN {CHANNEL}")
            await writer.start()
            for _ in range(10):
                await writer.commit(make_record())
            notices = [notice.channel async for notice in listening.notifies(timeout=10, stop_after=1)]
            notices += [notice.channel async for notice in listening.notifies(timeout=0.1)]
            await writer.stop()
            return notices

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "NOTICE_AFTER_S", 0.5)
        assert asyncio.run(write_ten()) == [CHANNEL]


@pytest.mark.parametrize("arrays", [(), (b"",), (b"\x00\xff", b"", bytes(70_000))])
def test_arrays_of_all_lengths_come_back_as_they_were(transactional_db: None, arrays: tuple[bytes, ...]) -> None:
    asyncio.run(write(make_record(completion_token_ids=arrays, completion_logprobs=arrays)))

    exchange = Exchange.objects.get()
    assert tuple(map(bytes, exchange.completion_token_ids)) == arrays
    assert tuple(map(bytes, exchange.completion_logprobs)) == arrays


COLUMNS = ("request", "response", "chat_request", "chat_response")
LONG = b"a word and another " * 1000
TEXTS = [b"", b"{}", LONG, os.urandom(20_000), zstandard.compress(b"no JSON, but a frame"), zstandard.FRAME_HEADER]


@pytest.mark.parametrize("text", TEXTS, ids=["empty", "short", "long", "noise", "frame", "half a frame"])
def test_long_texts_are_packed_and_come_back_as_they_were(transactional_db: None, text: bytes) -> None:
    """By the gateway: Postgres' own packing would take longer than all else on the way to a client's last byte."""
    asyncio.run(write(make_record(**dict.fromkeys(COLUMNS, text), prompt_token_ids=LONG)))

    exchange = Exchange.objects.get()
    assert [getattr(exchange, name) for name in COLUMNS] == [text] * 4
    assert Exchange.objects.values_list("request", flat=True).get() == text
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT length(request), length(chat_response), pg_column_size(prompt_token_ids) FROM trajectories_exchange"
        )
        [(request, answer, prompt)] = cursor.fetchall()
    assert request == answer
    assert (request < len(text) / 2) == (text == LONG)
    assert prompt >= len(LONG)  # it has an index, and is not packed by anyone


def test_many_long_texts_of_one_commit_are_packed_each_for_itself(transactional_db: None) -> None:
    records = [make_record(request=b"%d" % n + LONG, response=LONG + b"%d" % n) for n in range(20)]

    async def write_all() -> None:
        async with await connect() as connection:
            await insert_exchanges(connection, records)

    asyncio.run(write_all())
    kept = {row.id: (row.request, row.response) for row in Exchange.objects.all()}
    assert kept == {record.id: (record.request, record.response) for record in records}


async def test_an_answer_that_was_packed_is_found_as_it_was(transactional_db: None) -> None:
    record = make_record(**dict.fromkeys(COLUMNS, LONG), response_id="resp_1")
    async with await connect() as connection:
        await insert_exchanges(connection, [record])
        found = await find_answers(connection, ["resp_1"], project_id=record.project_id)
    assert found["resp_1"] == StoredAnswer(LONG, LONG, LONG, LONG, record.status)


def test_the_row_is_there_when_the_last_byte_is(http: httpx.Client) -> None:
    """Read on another connection at the very moment that the end mark has come."""
    for _ in range(20):
        with http.stream("POST", PATH, json=chat(stream=True)) as response:
            for line in response.iter_lines():
                if 'finish_reason":"stop' in line or line == "data: [DONE]":
                    assert Exchange.objects.filter(id=response.headers["x-request-id"]).exists()
        response = http.post(PATH, json=chat())
        assert Exchange.objects.filter(id=response.headers["x-request-id"]).exists()


def test_the_end_is_held_back_while_the_commit_is_under_way(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_commit = threading.Event()

    async def insert_late(*args: Any, **more: Any) -> None:
        await asyncio.to_thread(may_commit.wait, 5)
        await insert_exchanges(*args, **more)

    monkeypatch.setattr(writer_module, "COMMIT_TIMEOUT_S", 10)
    monkeypatch.setattr(writer_module, "insert_exchanges", insert_late)
    seen: list[str] = []

    def read() -> None:
        with http.stream("POST", PATH, json=chat(stream=True)) as response:
            seen.extend(line for line in response.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(lambda: any("you" in line for line in seen))
    reader.join(0.3)
    assert reader.is_alive()
    assert not any('finish_reason":"stop' in line or "[DONE]" in line for line in seen)
    may_commit.set()
    reader.join(5)
    assert seen[-1] == "data: [DONE]"


def test_calls_in_flight_share_a_commit(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[int] = []

    async def insert_slowly(connection: Any, records: Any, **more: Any) -> None:
        batches.append(len(records))
        await asyncio.sleep(0.4)
        await insert_exchanges(connection, records, **more)

    monkeypatch.setattr(writer_module, "insert_exchanges", insert_slowly)
    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(lambda _: http.post(PATH, json=chat()).status_code, range(16)))

    assert statuses == [200] * 16
    assert sum(batches) == 16
    assert len(batches) <= 4


@pytest.fixture
def proxied_http(postgres: Proxy, world: None, secret: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {secret}"}
    with GatewayServer() as server, httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
        yield client


@pytest.mark.parametrize("is_streamed", [False, True])
def test_agents_are_served_while_postgres_is_away_and_the_spool_is_replayed_once(
    proxied_http: httpx.Client, postgres: Proxy, spool_dir: Path, *, is_streamed: bool
) -> None:
    ids = [proxied_http.post(PATH, json=chat()).headers["x-request-id"]]
    postgres.shut()
    for n in range(5):
        response = proxied_http.post(PATH, json=chat(stream=is_streamed))
        assert response.status_code == 200
        assert response.elapsed.total_seconds() < 2, n
        ids.append(response.headers["x-request-id"])
    assert Exchange.objects.count() == 1
    assert not proxied_http.get("/readyz").json()["database"]
    assert list(spool_dir.glob("*.spool"))
    postgres.open()
    wait_until(lambda: Exchange.objects.count() == 6)
    wait_until(lambda: not list(spool_dir.glob("*.spool")))
    ids.append(proxied_http.post(PATH, json=chat()).headers["x-request-id"])
    wait_until(lambda: Exchange.objects.count() == 7)  # the writer may still think that Postgres is away

    assert sorted(Exchange.objects.values_list("id", flat=True)) == sorted(ids)
    assert all(Exchange.objects.values_list("is_exact", flat=True))


def test_a_postgres_that_hangs_holds_nobody_up_for_long(
    proxied_http: httpx.Client, postgres: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "COMMIT_TIMEOUT_S", 0.5)
    assert proxied_http.post(PATH, json=chat()).status_code == 200
    postgres.freeze()
    seconds = [proxied_http.post(PATH, json=chat()).elapsed.total_seconds() for _ in range(3)]
    assert max(seconds) < 5
    postgres.thaw()

    wait_until(lambda: Exchange.objects.count() == 4, timeout_s=15)


def test_a_record_that_postgres_refuses_holds_up_no_other(transactional_db: None, tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    poison = [make_record(session_key="x" * 500), make_record(error="nul \x00"), make_record(status="y" * 50)]
    good = [make_record() for _ in range(4)]
    records = [good[0], poison[0], good[1], poison[1], poison[2], good[2], good[3]]

    async def write() -> int:
        writer = ExchangeWriter(spool)
        await writer.start()
        await asyncio.gather(*(writer.commit(record) for record in records))
        assert writer.is_connected
        await writer.stop()
        return writer.n_lost

    assert asyncio.run(write()) == 0
    assert set(Exchange.objects.values_list("id", flat=True)) == {record.id for record in good}
    assert {path.stem for path in spool.refused.iterdir()} == {record.id for record in poison}


def test_a_record_that_can_be_written_nowhere_takes_no_other_with_it(transactional_db: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder can be made here")
    records = [make_record(), make_record(session_key="x" * 500), make_record()]

    async def write() -> int:
        writer = ExchangeWriter(Spool(tmp_path / "file" / "spool"))
        await writer.start()
        await asyncio.gather(*(writer.commit(record) for record in records))
        await writer.stop()
        return writer.n_lost

    assert asyncio.run(write()) == 1
    assert set(Exchange.objects.values_list("id", flat=True)) == {records[0].id, records[2].id}


def test_a_poisonous_record_in_the_spool_is_set_aside_too(transactional_db: None, tmp_path: Path) -> None:
    spool, good, poison = Spool(tmp_path), make_record(), make_record(session_key="x" * 500)
    spool.append([poison, good])

    assert asyncio.run(replay_once(spool)) == 2
    assert spool.is_empty()
    assert Exchange.objects.get().id == good.id
    assert [path.stem for path in spool.refused.iterdir()] == [poison.id]


def test_a_replay_that_died_before_the_end_is_done_again(transactional_db: None, tmp_path: Path) -> None:
    spool, records = Spool(tmp_path), [make_record() for _ in range(3)]
    spool.append(records)

    async def write_some_then_replay() -> int:
        async with await connect() as connection:
            await insert_exchanges(connection, records[:2])
        return await replay_once(spool)

    assert asyncio.run(write_some_then_replay()) == 3
    assert Exchange.objects.count() == 3


def test_a_call_is_answered_even_if_the_disk_fails_too(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise psycopg.OperationalError("away")

    monkeypatch.setattr(writer_module, "connect", refuse)
    spool_file = tmp_path / "file"
    spool_file.write_text("no folder can be made here")

    async def write() -> int:
        writer = ExchangeWriter(Spool(spool_file / "spool"))
        await writer.start()
        await asyncio.wait_for(writer.commit(make_record()), 5)
        await writer.stop()
        return writer.n_lost

    assert asyncio.run(write()) == 1


def test_no_fault_ends_the_writer(transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it connects nor while it wakes the recorder: every later call would wait for ever."""
    faults = [ValueError("nobody has thought of this")]
    is_waking = asyncio.Event()

    async def break_once() -> Connection:
        if faults:
            raise faults.pop()
        return await connect()

    async def break_when_asked(_connection: Connection) -> None:
        is_waking.set()
        raise RuntimeError("nor of that")

    monkeypatch.setattr(writer_module, "connect", break_once)
    monkeypatch.setattr(writer_module, "wake_recorder", break_when_asked)

    async def write() -> None:
        writer = ExchangeWriter(Spool(tmp_path))
        await writer.start()
        async with asyncio.timeout(10):
            while not is_waking.is_set():
                await writer.commit(make_record())
            await writer.commit(make_record())
        await writer.stop()

    asyncio.run(write())
    assert Exchange.objects.exists()


def test_what_was_kept_is_what_was_sent(http: httpx.Client, engine: FakeEngine) -> None:
    """Many calls at once, streamed and not: each answer stands under its own id with its own tokens."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: http.post(PATH, json=chat(stream=n % 2 == 0)), range(40)))

    rows = {row.id: row for row in Exchange.objects.all()}
    assert sorted(rows) == sorted(answer.headers["x-request-id"] for answer in answers)
    assert all(row.is_exact for row in rows.values())
    sampled = {json.dumps(call.choices[0].token_ids) for call in engine.calls}
    assert len(sampled) == 40
