"""What the pool keeps of a call: all of it, all but what patterns match, or nothing. Decided before anything is stored.

Knows records and the structure of the dialects' JSON; does not know who wrote the policy.
"""

import asyncio
import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import orjson
import structlog
from django.conf import settings

from apps.core.contracts.exchange import ExchangeRecord
from apps.core.redaction import BUILT_IN, BadPattern, Pattern, Redactor
from apps.gateway.errors import bad_request

log = structlog.get_logger(__name__)

TRAIN_HEADER = "x-claw-train"
LARGE_BYTES = 32 * 1024  # from here on redaction (about 1 ms) does not hold up the event loop

# Members of the dialects' JSON that are structure: an own pattern such as `user` must not eat a role.
STRUCTURE = frozenset(
    {
        "call_id",
        "finish_reason",
        "id",
        "model",
        "object",
        "previous_response_id",
        "response_id",
        "role",
        "status",
        "stop_reason",
        "tool_call_id",
        "tool_use_id",
        "type",
    }
)
# Objects whose members are the client's own: what tools are given and give back.
FREE = frozenset({"arguments", "input", "metadata", "output"})


@dataclass(frozen=True, slots=True)
class CapturePolicy:
    """`redactor` is None where nothing is kept."""

    redactor: Redactor | None

    @property
    def is_off(self) -> bool:
        return self.redactor is None


OFF = CapturePolicy(None)


def make_policy(mode: str, *, patterns: Sequence[str], own: Sequence[Mapping[str, str]]) -> CapturePolicy:
    """Return the policy of an agent that is not simply captured."""
    if mode == "off":
        return OFF
    return _redacting(tuple(patterns), tuple((pattern["name"], pattern["pattern"]) for pattern in own))


@lru_cache(maxsize=1024)  # the snapshot is loaded every five seconds
def _redacting(names: tuple[str, ...], own: tuple[tuple[str, str], ...]) -> CapturePolicy:
    chosen = [pattern for pattern in BUILT_IN if pattern.name in names]
    try:
        redactor = Redactor([*chosen, *(Pattern(*pattern) for pattern in own)], kept=STRUCTURE, free=FREE)
    except BadPattern as error:  # checked when it was set; a newer RE2 may think otherwise
        log.error("capture.bad_pattern", reason=str(error), patterns=[name for name, _ in own])
        return OFF
    return CapturePolicy(redactor)


def may_train(headers: Mapping[str, str]) -> bool:
    """Say whether the caller lets the call be trained on; raises ApiError (400) when the header says neither."""
    value = headers.get(TRAIN_HEADER, "on").strip().lower()
    if value not in {"on", "off"}:
        raise bad_request(f"The header `{TRAIN_HEADER}` must be `on` or `off`.", param=TRAIN_HEADER)
    return value == "on"


async def redact_record(record: ExchangeRecord, redactor: Redactor) -> ExchangeRecord:
    """Return what may be stored. A record that nothing matches is the same record, its tokens exact.

    Token ids would still say what was taken out, so a record that matched keeps none and says why in `token_check`.
    Should redaction itself fail, what the client and the model said is not kept at all.
    """
    n_bytes = len(record.request) + len(record.response or b"")
    try:
        if n_bytes < LARGE_BYTES:
            return _redact(record, redactor)
        return await asyncio.to_thread(_redact, record, redactor)
    except Exception:  # the edge: a text that is not understood must not be stored as it is
        log.exception("capture.redaction_failed", exchange=record.id)
        return _emptied(record)


def _redact(record: ExchangeRecord, redactor: Redactor) -> ExchangeRecord:
    found: Counter[str] = Counter()

    def clean(data: bytes | None) -> bytes | None:
        return None if data is None else redactor.redact_json(data, found)

    redacted = replace(
        record,
        request=redactor.redact_json(record.request, found),
        response=clean(record.response),
        chat_request=clean(record.chat_request),
        chat_response=clean(record.chat_response),
        sampling=redactor.redact_json(record.sampling, found),
        error=redactor.redact_text(record.error, found),
    )
    n_said = found.total()
    redacted = replace(
        redacted,
        headers=_redact_headers(record.headers, redactor, found),
        session_key=_redact_mark(record.session_key, redactor, found),
    )
    return _without_tokens(redacted, found) if n_said else redacted


def _without_tokens(record: ExchangeRecord, found: Counter[str]) -> ExchangeRecord:
    return replace(
        record,
        prompt_token_ids=None,
        completion_token_ids=(),
        completion_logprobs=(),
        is_exact=False,
        token_check=f"redacted: {', '.join(sorted(found))}",
    )


def _emptied(record: ExchangeRecord) -> ExchangeRecord:
    emptied = replace(
        record,
        request=b"{}",
        headers=b"{}",
        response=None,
        chat_request=None,
        chat_response=None,
        sampling=b"{}",
        session_key="",
        status="error",
        error="what was said is not kept: its redaction failed",
    )
    return _without_tokens(emptied, Counter({"all": 1}))


def _redact_headers(headers: bytes, redactor: Redactor, found: Counter[str]) -> bytes:
    values: dict[str, str] = orjson.loads(headers)
    redacted = {name: _redact_mark(value, redactor, found) for name, value in values.items()}
    return headers if redacted == values else orjson.dumps(redacted)


def _redact_mark(mark: str, redactor: Redactor, found: Counter[str]) -> str:
    """Return a session's mark so that it tells sessions apart as before and says no more."""
    if not mark or redactor.redact_text(mark, found) == mark:
        return mark
    digest = hmac.new(settings.SECRET_KEY.encode(), mark.encode(errors="replace"), hashlib.sha256)
    return f"redacted-{digest.hexdigest()[:32]}"
