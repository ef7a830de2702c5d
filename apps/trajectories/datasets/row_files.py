"""Rows in files: JSON lines and Parquet, written part by part and joined, read row by row, never whole in memory.

In Parquet what has no fixed shape (messages, tools, turns, answers, metadata) stands as JSON in text columns.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from apps.trajectories.datasets.models import FileFormat, Shape

Row = dict[str, Any]
_MESSAGES = ("messages", "prompt", "chosen", "rejected", "completion")
JSON_COLUMNS = frozenset({*_MESSAGES, "tools", "turns", "answer", "metadata", "trajectory_metadata"})
_BATCH_ROWS = 256
_BATCH_WEIGHT = 2_000_000  # ids and characters: a prompt may be long
_COPY_BYTES = 1 << 20

_HEAD = [
    ("format", pa.string()),
    ("trajectory", pa.string()),
    ("n_rows", pa.int32()),
    ("agent", pa.string()),
    ("channel", pa.string()),
    ("group", pa.string()),
    ("title", pa.string()),
    ("trajectory_metadata", pa.string()),
    ("trajectory_reward", pa.float64()),
    ("trajectory_is_excluded", pa.bool_()),
    ("trajectory_has_error", pa.bool_()),
    ("trajectory_started_at", pa.string()),
]
_STEP = [
    ("index", pa.int32()),
    ("reward", pa.float64()),
    ("version", pa.string()),
    ("finish_reason", pa.string()),
    ("status", pa.string()),
    ("side_call", pa.string()),
    ("is_excluded", pa.bool_()),
    ("temperature", pa.float64()),
    ("top_p", pa.float64()),
    ("top_k", pa.int32()),
    ("client_step_id", pa.string()),
    ("metadata", pa.string()),
    ("started_at", pa.string()),
    ("ended_at", pa.string()),
    ("is_exact", pa.bool_()),
    ("token_check", pa.string()),
    ("constraints", pa.string()),
    ("prompt_ids", pa.list_(pa.int32())),
    ("completion_ids", pa.list_(pa.int32())),
    ("mask", pa.list_(pa.int8())),
    ("logprobs", pa.list_(pa.float32())),
    ("answer", pa.string()),
]
_SAID = [
    ("format", pa.string()),
    ("id", pa.string()),
    ("trajectory", pa.string()),
    ("step", pa.string()),
    ("index", pa.int32()),
    ("agent", pa.string()),
    ("channel", pa.string()),
    ("group", pa.string()),
    ("trajectory_metadata", pa.string()),
    ("is_excluded", pa.bool_()),
    ("source", pa.string()),
    ("said_at", pa.string()),
    ("prompt", pa.string()),
    ("tools", pa.string()),
]
_PREFERENCE = [
    ("chosen", pa.string()),
    ("rejected", pa.string()),
    ("kind", pa.string()),
    ("field", pa.string()),
    ("ranking", pa.string()),
    ("text", pa.string()),
    ("chosen_version", pa.string()),
    ("rejected_version", pa.string()),
    ("rejected_trajectory", pa.string()),
    ("rejected_step", pa.string()),
]
_SFT = [("completion", pa.string()), ("text", pa.string())]
_HINTS = [
    ("completion", pa.string()),
    ("hint", pa.string()),
    ("reward", pa.float64()),
    ("trajectory_reward", pa.float64()),
    ("version", pa.string()),
    ("grader", pa.string()),
]
SCHEMAS: dict[str, pa.Schema] = {
    Shape.MESSAGES: pa.schema([*_HEAD, ("messages", pa.string()), ("tools", pa.string()), ("turns", pa.string())]),
    Shape.TOKENS: pa.schema([*_HEAD, *_STEP]),
    Shape.PREFERENCE: pa.schema([*_SAID, *_PREFERENCE]),
    Shape.SFT: pa.schema([*_SAID, *_SFT]),
    Shape.HINTS: pa.schema([*_SAID, *_HINTS]),
}


def dump_line(row: Row) -> bytes:
    """Return a row as one line of JSON. Half surrogate pairs, which clients may send, stay escaped."""
    return json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def write_rows(path: Path, rows: Iterable[Row], *, shape: str, file_format: str) -> None:
    """Write a file in one go, under its name only when it is whole."""
    draft = path.with_suffix(".draft")
    if file_format == FileFormat.PARQUET:
        _write_parquet(draft, rows, schema=SCHEMAS[shape])
    else:
        with draft.open("wb") as file:
            for row in rows:
                file.write(dump_line(row))
    draft.replace(path)


def _write_parquet(path: Path, rows: Iterable[Row], *, schema: pa.Schema) -> None:
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(_to_cells(row, schema) for row in rows):
            writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))


def to_batch(rows: Sequence[Row], *, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as Arrow."""
    return pa.RecordBatch.from_pylist([_to_cells(row, schema) for row in rows], schema=schema)


def _to_cells(row: Row, schema: pa.Schema) -> Row:
    return {name: _to_cell(name, row[name]) for name in schema.names}


def _to_cell(name: str, value: Any) -> Any:
    return json.dumps(value, separators=(",", ":")) if name in JSON_COLUMNS else value


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    weight = 0
    for row in rows:
        batch.append(row)
        weight += sum(len(cell) for cell in row.values() if isinstance(cell, (str, list)))
        if len(batch) == _BATCH_ROWS or weight > _BATCH_WEIGHT:
            yield batch
            batch, weight = [], 0
    if batch:
        yield batch


def join_files(parts: Iterable[Path], target: Path, *, shape: str, file_format: str) -> None:
    """Make one file of many, under its name only when it is whole."""
    draft = target.with_suffix(".draft")
    if file_format == FileFormat.PARQUET:
        with pq.ParquetWriter(draft, SCHEMAS[shape], compression="zstd") as writer:
            for part in parts:
                file = pq.ParquetFile(part)
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group))
    else:
        with draft.open("wb") as out:
            for part in parts:
                _append(part, out)
    draft.replace(target)


def _append(part: Path, file: Any) -> None:
    with part.open("rb") as source:
        while chunk := source.read(_COPY_BYTES):
            file.write(chunk)


def to_arrow_stream(rows: Sequence[Row], *, shape: str) -> bytes:
    """Return rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, SCHEMAS[shape]) as writer:
        writer.write_batch(to_batch(rows, schema=SCHEMAS[shape]))
    return bytes(sink.getvalue().to_pybytes())


def to_parquet(rows: Sequence[Row], *, shape: str) -> bytes:
    """Return rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMAS[shape], compression="zstd") as writer:
        writer.write_batch(to_batch(rows, schema=SCHEMAS[shape]))
    return bytes(sink.getvalue().to_pybytes())
