"""Records on local disk while Postgres is away: `<data>/spool/`, one file a process, fsynced before the agent's answer.

A file is a row of frames: length and CRC-32 of the payload (little-endian, 4 bytes each), then the payload. Its owner
holds a lock on it (flock) as long as it lives, so what is not locked was left by a dead process. Knows no Postgres.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from apps.core.contracts.codec import ContractError
from apps.core.contracts.exchange import SPOOL_SUFFIX, ExchangeRecord, decode_record, encode_record, mark_answer

log = structlog.get_logger(__name__)

ROTATE_BYTES = 64 * 1024 * 1024
_HEAD = struct.Struct("<II")


@dataclass
class _OpenFile:
    path: Path
    descriptor: int
    size: int = 0


class Spool:
    """This process's side of the spool folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refused = folder / "refused"  # records that Postgres will never take
        self.damaged = folder / "damaged"  # bytes that are no record
        self._open: _OpenFile | None = None
        self._lock = threading.RLock()  # the writer appends in a thread of its own

    def append(self, records: Sequence[ExchangeRecord]) -> None:
        """Write the records and wait until the disk has them; raises OSError, and then none of them is there."""
        data = b"".join(frame(encode_record(record)) for record in records)
        with self._lock:
            file = self._open or self._create()
            try:
                _write_all(file.descriptor, data)
                os.fsync(file.descriptor)
            except OSError:
                self._cut_back(file)
                raise
            file.size += len(data)
            if file.size >= ROTATE_BYTES:
                self.seal()

    def seal(self) -> None:
        """Close the file being written, which frees it to be replayed."""
        with self._lock:
            if self._open is not None:
                os.close(self._open.descriptor)
                self._open = None

    def is_empty(self) -> bool:
        """Say whether nothing is left to replay, of this process or a dead one."""
        return self._open is None and next(self.folder.glob(f"*{SPOOL_SUFFIX}"), None) is None

    def waiting_files(self) -> Iterator["WaitingFile"]:
        """Yield the files to replay, each locked as long as it is looked at; not those of living processes."""
        self.seal()
        for path in sorted(self.folder.glob(f"*{SPOOL_SUFFIX}")):
            with contextlib.suppress(FileNotFoundError):  # another process replayed it
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield WaitingFile(path, damaged=self.damaged)
                except BlockingIOError:
                    continue
                finally:
                    os.close(descriptor)

    def find_answers(self, response_ids: Iterable[str]) -> dict[str, ExchangeRecord]:
        """Return those of the answers that are on this host's disk still, whichever process wrote them.

        Reads the files through, the newest first. One that is replayed meanwhile is passed over: Postgres has it then.
        """
        wanted, found = set(response_ids), dict[str, ExchangeRecord]()
        for path in sorted(self.folder.glob(f"*{SPOOL_SUFFIX}"), key=_find_age):
            with contextlib.suppress(FileNotFoundError):
                found |= _find_answers(path, wanted - found.keys())
            if len(found) == len(wanted):
                break
        return found

    def refuse(self, record: ExchangeRecord, *, reason: str) -> None:
        """Set aside a record that cannot be written to Postgres, for a person to look at."""
        self.refused.mkdir(parents=True, exist_ok=True)
        path = self.refused / f"{record.id}{SPOOL_SUFFIX}"
        path.write_bytes(frame(encode_record(record)))
        log.error("exchange.refused", exchange=record.id, reason=reason, kept_in=str(path))

    def _create(self) -> _OpenFile:
        self.folder.mkdir(parents=True, exist_ok=True)
        while self._open is None:
            path = self.folder / f"{os.getpid()}-{secrets.token_hex(6)}{SPOOL_SUFFIX}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                self._open = _OpenFile(path, descriptor)
            else:  # before it was locked, another process took it for a dead one's empty file and removed it
                os.close(descriptor)
        _sync_folder(self.folder)
        return self._open

    def _cut_back(self, file: _OpenFile) -> None:
        """Take back half a frame, so that what is appended later can be read."""
        try:
            os.ftruncate(file.descriptor, file.size)
        except OSError as error:
            log.error("spool.not_cut_back", path=str(file.path), error=str(error))
            self.seal()


@dataclass(frozen=True)
class WaitingFile:
    """A spool file that no living process writes."""

    path: Path
    damaged: Path

    def read(self) -> list[ExchangeRecord]:
        """Return the records up to the first broken frame; the bytes from there on are kept aside."""
        data = self.path.read_bytes()
        records, end = _read_frames(data)
        if end < len(data):
            self.damaged.mkdir(parents=True, exist_ok=True)
            aside = self.damaged / f"{self.path.stem}-{end}.bytes"
            aside.write_bytes(data[end:])
            log.error("spool.damaged", path=str(self.path), offset=end, n_bytes=len(data) - end, kept_in=str(aside))
        return records

    def remove(self) -> None:
        """Forget the file: all its records are in Postgres, or set aside."""
        self.path.unlink(missing_ok=True)  # another process was as fast


def _find_age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _find_answers(path: Path, wanted: set[str]) -> dict[str, ExchangeRecord]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = {response_id: _find_record(data, mark_answer(response_id)) for response_id in wanted}
    return {response_id: record for response_id, record in found.items() if record is not None}


def _find_record(data: mmap.mmap, mark: bytes) -> ExchangeRecord | None:
    """Return the record whose payload holds the mark, None where there is none that is whole."""
    place, at = data.find(mark), 0
    while at + _HEAD.size <= place:
        end = at + _HEAD.size + _HEAD.unpack_from(data, at)[0]
        if place < end:
            records, _ = _read_frames(data[at:end])
            return records[0] if records else None
        at = end
    return None


def frame(payload: bytes) -> bytes:
    """Return the payload with its head."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def _read_frames(data: bytes) -> tuple[list[ExchangeRecord], int]:
    records: list[ExchangeRecord] = []
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        payload = data[at + _HEAD.size : at + _HEAD.size + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            break
        try:
            records.append(decode_record(payload))
        except ContractError:
            break
        at += _HEAD.size + length
    return records, at


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
