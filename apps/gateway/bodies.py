"""Reads a request's body up to a size and a time, and the JSON object in it. Knows no dialect."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import orjson
from django.conf import settings
from starlette.types import Receive

from apps.gateway.errors import ApiError, bad_request

IDLE_S = 30.0  # the longest pause between two pieces of a body
WHOLE_S = 300.0
_MIB = 1024 * 1024
INVALID_JSON = "invalid_json"  # the code of an error
# A comma is a token to any model, so a body with more of them than this fits none; few objects are as short as one in
# twelve bytes. What there is more of keeps the event loop, and every other call with it, for seconds.
MOST_ITEMS = 1_000_000
MOST_OBJECTS = 100_000
_OBJECTS = tuple(b"{" + mark for mark in (b'"', b" ", b"\n", b"\r", b"\t"))  # not those in a text: there it is `{\"`
MOST_ESCAPES = 1_000_000  # of a body that is mended: each takes a step of Python's
# Of escapes: a backslash, a whole character of two halves, or (the last) half of one.
_HALVES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class ClientGoneError(Exception):
    """Nobody is there any more to be answered."""


async def read_body(headers: Mapping[str, str], receive: Receive, *, limit: int | None = None) -> bytes:
    """Return the whole body; raises ApiError or ClientGoneError.

    415: it is compressed. 413: it is larger than `limit` bytes (the setting), of which no more are kept. 408: it does
    not arrive in time.
    """
    limit = settings.CLAW.max_body_mb * _MIB if limit is None else limit
    if headers.get("content-encoding", "").strip().lower() not in ("", "identity"):
        raise ApiError(
            "Send the body uncompressed.",
            status=415,
            code="unsupported_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    now = asyncio.get_running_loop().time
    end_at = now() + WHOLE_S
    try:
        async with asyncio.timeout_at(now() + IDLE_S) as clock:
            parts: list[bytes] = []
            n_bytes, has_more = 0, True
            while has_more:
                part, has_more = await _read_part(receive)
                n_bytes += len(part)
                if n_bytes > limit:
                    raise _too_large(limit)
                parts.append(part)
                if has_more:
                    clock.reschedule(min(now() + IDLE_S, end_at))
    except TimeoutError:
        raise _too_slow() from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _read_part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        f"The request is larger than {limit // _MIB} MiB.",
        status=413,
        code="request_too_large",
        headers={"Connection": "close"},  # the rest of the body is not read
    )


def _too_slow() -> ApiError:
    return ApiError(
        f"The request's body did not arrive: it may pause for {IDLE_S:g} s and take {WHOLE_S:g} s.",
        status=408,
        code="request_timeout",
        headers={"Connection": "close"},
    )


def mend_halves(raw: bytes) -> bytes:
    """Return the body with U+FFFD for every escaped half of a character, which no UTF-8 can hold.

    Agents in JavaScript cut long texts anywhere, also in the midst of an emoji; a half that stays in a conversation's
    history would have each of its later requests refused.
    """
    has_any = b"\\ud" in raw or b"\\uD" in raw
    if not has_any or raw.count(b"\\") > MOST_ESCAPES:
        return raw
    return _HALVES.sub(lambda found: rb"\ufffd" if found[1] else found[0], raw)


def refuse_crowd(raw: bytes) -> None:
    """Raise ApiError (413) for a body of very many small things: it takes no memory to speak of, but all the time."""
    if len(raw) <= MOST_OBJECTS:
        return
    n_items = raw.count(b",")
    if n_items > MOST_ITEMS or (n_items > MOST_OBJECTS and sum(map(raw.count, _OBJECTS)) > MOST_OBJECTS):
        raise ApiError(
            f"The request holds more than {MOST_OBJECTS:,} objects, or more than {MOST_ITEMS:,} items.",
            status=413,
            code="request_too_large",
        )


def read_json(raw: bytes) -> dict[str, Any]:
    """Return the object in these bytes; raises ApiError (400, 413)."""
    refuse_crowd(raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"We could not parse the JSON body of your request: {error}", code=INVALID_JSON) from error
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.", code=INVALID_JSON)
    return body
