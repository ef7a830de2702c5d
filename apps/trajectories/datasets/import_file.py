"""The uploaded file: kept on disk, made lines of JSON whatever it was, and indexed so that the lines of one trajectory
are found wherever they stand. Memory holds places of lines, never the lines.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from apps.core.errors import InvalidInput, TooLarge
from apps.trajectories.datasets.incoming import BadLine
from apps.trajectories.datasets.json_lists import BrokenList, begins_list, split_list
from apps.trajectories.datasets.readers import READERS, Line, choose_format
from apps.trajectories.datasets.row_files import JSON_COLUMNS
from apps.trajectories.datasets.storage import check_room
from apps.trajectories.datasets.strict_json import NotJson, read_json

MAX_BYTES = 2 * 1024**3
MAX_LINES_BYTES = 4 * MAX_BYTES  # of a Parquet file, as lines
MAX_LINE_BYTES = 256 * 1024**2
_PARQUET_MAGIC = b"PAR1"
_PACKED_MAGICS = (
    b"\x1f\x8b",
    b"PK\x03\x04",
    b"BZh",
    b"\xfd7zXZ\x00",
    b"\x28\xb5\x2f\xfd",
)  # gzip, zip, bzip2, xz, zstd
_BEGINNING = 1024  # bytes of a file that tell what it is
_BATCH_ROWS = 16  # prompts may be long
_UNREADABLE = b"\x00"  # before the words that stand for a row which is no JSON; no line of JSON begins so


def save_upload(chunks: Iterable[bytes], path: Path) -> int:
    """Keep an upload and return its size. Raises TooLarge, and InvalidInput for what is empty, packed or no UTF-8."""
    draft = path.with_suffix(".draft")
    n_bytes = 0
    with draft.open("wb") as file:
        for chunk in chunks:
            if n_bytes == 0:
                _check_beginning(chunk)
            n_bytes += len(chunk)
            if n_bytes > MAX_BYTES:
                raise TooLarge(f"a file may have {MAX_BYTES // 1024**2} MiB: send it in several", field="file")
            file.write(chunk)
    if not n_bytes:
        raise InvalidInput("the file is empty", field="file")
    draft.replace(path)
    return n_bytes


def _check_beginning(chunk: bytes) -> None:
    if chunk.startswith(_PACKED_MAGICS):
        raise InvalidInput("the file is packed: unpack it first", field="file")
    if not _may_begin_text(chunk[:4]):
        raise InvalidInput("the file is not UTF-8 text: send lines or a list of JSON so, or Parquet", field="file")


def _may_begin_text(beginning: bytes) -> bool:
    """Say whether UTF-8 may begin so, cut in the midst of a letter or not; UTF-16 does not, nor a picture."""
    try:
        return "\x00" not in getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return False


def make_lines(upload: Path, lines: Path, *, tick: Callable[[], None]) -> Path:
    """Return the upload as lines of JSON: itself, or the rows of a Parquet file or the items of a list. `tick` is
    called now and then.

    Raises InvalidInput for what is no whole Parquet file.
    """
    with upload.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if beginning.startswith(_PARQUET_MAGIC):
        spelled = _spell_parquet(upload)
    elif begins_list(beginning):
        spelled = _spell_list(upload)
    else:
        return upload
    if lines.exists():
        return lines
    draft = lines.with_suffix(".draft")
    with draft.open("wb") as file:
        for number, line in enumerate(spelled):
            if number % _BATCH_ROWS == 0:
                _check_unpacked(file.tell())
            tick()
            file.write(line)
    draft.replace(lines)
    return lines


def _spell_parquet(upload: Path) -> Iterator[bytes]:
    try:
        for batch in pq.ParquetFile(upload).iter_batches(batch_size=_BATCH_ROWS):
            yield from (_spell_row(batch.slice(place, 1)) for place in range(batch.num_rows))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the file's
            raise
        raise InvalidInput(f"the file is no whole Parquet file: {error}", field="file") from error


def _spell_list(upload: Path) -> Iterator[bytes]:
    with upload.open("rb") as file:
        try:
            for item in split_list(file, max_item=MAX_LINE_BYTES):
                yield item.encode() + b"\n"
        except BrokenList as error:
            yield _spell_fault(f"the list breaks off: {error}")


def _check_unpacked(n_bytes: int) -> None:
    """Raise TooLarge or DiskFull: a small Parquet file may hold very much."""
    if n_bytes > MAX_LINES_BYTES:
        raise TooLarge(f"its rows are more than {MAX_LINES_BYTES // 1024**2} MiB: send it in several", field="file")
    check_room(0, what="unpacking this file")


def _spell_row(row: pa.RecordBatch) -> bytes:
    """Return the one row as a line of JSON, or why it is none."""
    if row.nbytes > MAX_LINE_BYTES:  # a few kilobytes of a file may say so
        return _spell_fault(f"a row may have {MAX_LINE_BYTES // 1024**2} MiB")
    try:
        (cells,) = row.to_pylist()
        line = {name: _from_cell(name, value) for name, value in cells.items()}
        return json.dumps(line, separators=(",", ":"), default=_spell_cell).encode() + b"\n"
    except (ValueError, RecursionError) as error:
        return _spell_fault(f"this row cannot be read: {error}")


def _spell_fault(reason: str) -> bytes:
    return _UNREADABLE + reason.replace("\n", " ").encode("utf-8", "replace") + b"\n"


def _from_cell(name: str, value: Any) -> Any:
    """A text that is no JSON stays a text, and the line is refused by what it should have been."""
    if name not in JSON_COLUMNS or not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except NotJson:
        return value


def _spell_cell(value: Any) -> Any:
    """Return what JSON has for a value of Parquet's. Raises ValueError for what it has nothing for."""
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise ValueError(f"JSON has no {type(value).__name__}")


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What a look at every line found. `problems` are the lines that belong to no trajectory."""

    n_lines: int
    n_groups: int
    problems: list[BadLine]


def index_file(path: Path, index: Path, *, row_format: str, tick: Callable[[], None]) -> Indexed:
    """Look at every line once and write where the lines of each trajectory stand, a line of JSON for each.

    `tick` is called now and then.
    """
    groups: dict[tuple[str, str | int], list[tuple[int, int]]] = {}
    problems = []
    n_lines = 0
    with path.open("rb") as file:
        for offset, data in _read_lines(file):
            n_lines += 1
            tick()
            if not data.strip():
                continue
            try:
                key = _find_group(n_lines, data, row_format=row_format)
                groups.setdefault(key, []).append((n_lines, offset))
            except BadLine as problem:
                problems.append(problem)
    draft = index.with_suffix(".draft")
    with draft.open("w") as out:
        out.writelines(json.dumps([name, places]) + "\n" for (name, _), places in groups.items())
    draft.replace(index)
    return Indexed(n_lines=n_lines, n_groups=len(groups), problems=problems)


def _read_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield where each line begins, and the line; of one that is too long only enough to see that."""
    offset = 0
    while data := file.readline(MAX_LINE_BYTES + 1):
        yield offset, data
        while len(data) > MAX_LINE_BYTES and not data.endswith(b"\n"):
            offset += len(data)
            data = file.readline(MAX_LINE_BYTES + 1)
        offset += len(data)


def read_groups(path: Path, index: Path, *, first: int = 0) -> Iterator[tuple[str, list[Line]]]:
    """Yield the format and the lines of each trajectory from the `first` on, in the order of their first lines."""
    with path.open("rb") as file, index.open() as entries:
        for entry in islice(entries, first, None):
            name, places = json.loads(entry)
            lines = []
            for line, offset in places:
                file.seek(offset)
                lines.append((line, _parse_line(line, file.readline())))
            yield name, lines


def _find_group(line: int, data: bytes, *, row_format: str) -> tuple[str, str | int]:
    """Return the line's format and what names its trajectory in the file. Raises BadLine."""
    row = _parse_line(line, data)
    name = choose_format(row, row_format, line)
    key = READERS[name].key(row)
    return name, line if key is None else key


def _parse_line(line: int, data: bytes) -> dict[str, Any]:
    if len(data) > MAX_LINE_BYTES:
        raise BadLine(line, f"a line may have {MAX_LINE_BYTES // 1024**2} MiB")
    if data.startswith(_UNREADABLE):
        raise BadLine(line, data[len(_UNREADABLE) :].decode("utf-8", "replace").strip())
    try:
        row = read_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadLine(line, f"this is not JSON: its text is not UTF-8: {error}") from error
    except NotJson as error:
        raise BadLine(line, str(error)) from error
    if not isinstance(row, dict):
        raise BadLine(line, "this is JSON, but no object")
    return row
