"""One captured model call, as the gateway hands it to the pool and as the spool keeps it on disk.

Knows nothing of dialects or of tables. Token ids and log-probs are the engine's own, as little-endian bytes.
"""

import base64
import json
from dataclasses import MISSING, dataclass, fields
from datetime import datetime
from typing import Any

from apps.core.contracts.codec import ContractError

COMPLETE = "complete"
ABORTED = "aborted"  # the client went away
ERROR = "error"  # no usable answer
UNCAPTURED = "uncaptured"  # stands in an answer's id where nothing was kept of the call

SPOOL_FOLDER = "spool"  # in the data directory: records that Postgres does not have yet
SPOOL_SUFFIX = ".spool"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeRecord:
    """The columns of one `Exchange` row. Text that a client chose is cut and cleaned before it gets here."""

    id: str
    project_id: str
    agent_id: str
    key_id: str
    version_id: str
    engine_id: str
    trajectory_id: str
    session_key: str
    dialect: str
    response_id: str
    request: bytes
    headers: bytes
    response: bytes | None
    prompt_token_ids: bytes | None  # int32 little-endian, (P,)
    completion_token_ids: tuple[bytes, ...]  # one int32 array a choice, (T,)
    completion_logprobs: tuple[bytes, ...]  # one float32 array a choice, (T,), nats
    sampling: bytes
    status: str
    error: str
    is_streamed: bool
    is_exact: bool
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime
    chat_request: bytes | None = None  # what the engine was asked, where `request` is of another dialect
    chat_response: bytes | None = None  # what it answered, as a chat completion
    is_training_allowed: bool = True  # False: the caller keeps it out of training
    token_check: str = ""  # why the token ids are doubted


_BYTES = frozenset({"request", "headers", "response", "prompt_token_ids", "sampling", "chat_request", "chat_response"})
_BYTES_LISTS = frozenset({"completion_token_ids", "completion_logprobs"})
_TIMES = frozenset({"started_at", "first_token_at", "ended_at"})
_NAMES = tuple(field.name for field in fields(ExchangeRecord))
_REQUIRED = frozenset(field.name for field in fields(ExchangeRecord) if field.default is MISSING)


def encode_record(record: ExchangeRecord) -> bytes:
    """Return the record as one JSON object; bytes in base 64, times in ISO 8601."""
    return json.dumps({name: _encode(name, getattr(record, name)) for name in _NAMES}).encode()


def mark_answer(response_id: str) -> bytes:
    """Return what an encoded record of this answer holds, and no other: texts of clients are in base 64."""
    return json.dumps({"response_id": response_id}).encode()[1:-1]


def decode_record(data: bytes) -> ExchangeRecord:
    """Return what `encode_record` made; raises ContractError when the shape differs.

    A field that has a default may be missing: the spool may have been written before the field was.
    """
    try:
        given = json.loads(data)
        if not isinstance(given, dict) or not _REQUIRED <= set(given) <= set(_NAMES):
            raise ContractError("ExchangeRecord: not the fields of this version")
        return ExchangeRecord(**{name: _decode(name, value) for name, value in given.items()})
    except (ValueError, TypeError) as error:
        raise ContractError(f"ExchangeRecord: {error}") from error


def _encode(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _BYTES:
        return base64.b64encode(value).decode()
    if name in _BYTES_LISTS:
        return [base64.b64encode(item).decode() for item in value]
    if name in _TIMES:
        return value.isoformat()
    return value


def _decode(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _BYTES:
        return base64.b64decode(value)
    if name in _BYTES_LISTS:
        return tuple(base64.b64decode(item) for item in value)
    if name in _TIMES:
        return datetime.fromisoformat(value)
    return value
