"""The spool's files: what is appended comes back, whatever happens to the process or the disk."""

import fcntl
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from apps.core.contracts.codec import ContractError
from apps.core.contracts.exchange import ExchangeRecord, decode_record, encode_record
from apps.core.ids import new_id
from apps.gateway.spool import Spool, frame

NOW = datetime(2026, 12, 1, 4, 30, 0, 123456, tzinfo=UTC)


def make_record(**changes: object) -> ExchangeRecord:
    """Return a record with bytes that no text codec likes."""
    fields: dict[str, object] = {
        "id": new_id("exch"),
        "project_id": "proj_1",
        "agent_id": "agnt_1",
        "key_id": "key_1",
        "version_id": "vers_1",
        "engine_id": "engn_1",
        "trajectory_id": "",
        "session_key": "sitzung ü",
        "dialect": "chat",
        "response_id": "chatcmpl-1",
        "request": b"\x00\xff{",
        "headers": b"{}",
        "response": None,
        "prompt_token_ids": b"\x01\x00\x00\x00",
        "completion_token_ids": (b"\x00\x00\x00\x80", b""),
        "completion_logprobs": (b"\xff\xff\xff\xff", b""),
        "sampling": b"{}",
        "status": "complete",
        "error": "",
        "is_streamed": True,
        "is_exact": False,
        "started_at": NOW,
        "first_token_at": None,
        "ended_at": NOW,
    }
    return ExchangeRecord(**{**fields, **changes})  # type: ignore[arg-type]


def read_all(spool: Spool) -> list[ExchangeRecord]:
    return [record for file in spool.waiting_files() for record in file.read()]


def test_a_record_survives_the_disk_unchanged() -> None:
    record = make_record()

    assert decode_record(encode_record(record)) == record


def test_a_record_of_the_release_before_is_read() -> None:
    known = json.loads(encode_record(make_record()))
    for name in ("chat_request", "chat_response", "is_training_allowed", "token_check"):
        del known[name]

    assert decode_record(json.dumps(known).encode()) == make_record(id=known["id"])


def test_the_chat_form_survives_the_disk() -> None:
    record = make_record(chat_request=b"{\xff", chat_response=b"", is_training_allowed=False, token_check="odd count")

    assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"id": "x"}', b"\xff"])
def test_what_is_no_record_is_an_error(data: bytes) -> None:
    with pytest.raises(ContractError):
        decode_record(data)


def test_what_is_appended_comes_back_in_order(tmp_path: Path) -> None:
    spool, records = Spool(tmp_path / "spool"), [make_record() for _ in range(5)]
    assert spool.is_empty()
    spool.append(records[:2])
    spool.append(records[2:])

    assert not spool.is_empty()
    assert read_all(spool) == records
    for file in spool.waiting_files():
        file.remove()
    assert spool.is_empty()


def test_files_of_a_living_process_are_left_alone(tmp_path: Path) -> None:
    living, other = Spool(tmp_path), Spool(tmp_path)
    living.append([make_record()])

    assert read_all(other) == []
    assert not other.is_empty()
    living.seal()
    assert len(read_all(other)) == 1


def test_a_file_that_another_process_removed_before_it_was_locked_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file that nobody has locked looks like a dead process's."""
    spool, other, record = Spool(tmp_path), Spool(tmp_path), make_record()
    flock = fcntl.flock

    def be_too_late(descriptor: int, operation: int) -> None:
        monkeypatch.undo()
        for file in other.waiting_files():
            assert file.read() == []
            file.remove()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", be_too_late)
    spool.append([record])
    spool.seal()

    assert read_all(other) == [record]


def test_a_file_that_another_process_has_replayed_is_gone_all_the_same(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([make_record()])
    for file in spool.waiting_files():
        file.remove()
        file.remove()

    assert spool.is_empty()


def test_half_a_record_at_the_end_is_kept_aside(tmp_path: Path) -> None:
    spool, whole = Spool(tmp_path), make_record()
    cut = frame(encode_record(make_record()))[:-10]
    (tmp_path / "1-dead.spool").write_bytes(frame(encode_record(whole)) + cut)

    assert read_all(spool) == [whole]
    (aside,) = spool.damaged.iterdir()
    assert aside.read_bytes() == cut


@pytest.mark.parametrize(
    "damage", [lambda data: b"\x00" * len(data), lambda data: data[:-1] + b"!", lambda data: data[:5]]
)
def test_damaged_bytes_are_recognised_and_kept(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    spool, whole = Spool(tmp_path), make_record()
    bad = damage(frame(encode_record(make_record())))
    (tmp_path / "1-dead.spool").write_bytes(frame(encode_record(whole)) + bad)

    assert read_all(spool) == [whole]
    assert [path.read_bytes() for path in spool.damaged.iterdir()] == [bad]


def test_a_full_disk_leaves_no_half_record_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, first, last = Spool(tmp_path), make_record(), make_record()
    spool.append([first])
    real_write = os.write

    def write_half(descriptor: int, data: memoryview) -> int:
        if len(data) > 100:
            return real_write(descriptor, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(OSError, match="No space"):
        spool.append([make_record()])
    monkeypatch.undo()
    spool.append([last])

    assert read_all(spool) == [first, last]
    assert not spool.damaged.exists()


def test_a_refused_record_is_set_aside(tmp_path: Path) -> None:
    spool, record = Spool(tmp_path), make_record()
    spool.refuse(record, reason="too long")

    assert (spool.refused / f"{record.id}.spool").read_bytes() == frame(encode_record(record))
    assert spool.is_empty()


def test_the_lock_goes_with_its_owner(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([make_record()])
    (path,) = tmp_path.glob("*.spool")
    with path.open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    spool.seal()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_an_answer_is_found_whoever_wrote_it(tmp_path: Path) -> None:
    records = [make_record(response_id=f"resp_{n}", request=b"x" * n) for n in range(7)]
    living, dead, reader = Spool(tmp_path), Spool(tmp_path), Spool(tmp_path)
    assert reader.find_answers({"resp_1"}) == {}
    dead.append(records[:3])
    dead.seal()
    living.append(records[3:5])
    living.append(records[5:])

    found = reader.find_answers({"resp_0", "resp_2", "resp_3", "resp_6", "resp_none"})

    assert found == {f"resp_{n}": records[n] for n in (0, 2, 3, 6)}


def test_half_an_answer_is_none(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append([make_record(response_id="resp_1"), make_record(response_id="resp_2")])
    (path,) = tmp_path.glob("*.spool")
    path.write_bytes(path.read_bytes()[:-3])
    (tmp_path / "empty.spool").touch()

    assert set(spool.find_answers({"resp_1", "resp_2"})) == {"resp_1"}
