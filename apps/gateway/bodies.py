"""Reads a request's body up to a limit, and the JSON object in it. Knows no dialect."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import Receive

from apps.gateway.errors import ApiError, bad_request

MAX_BODY_BYTES = 32 * 1024 * 1024


class ClientGoneError(Exception):
    """Nobody is there any more to be answered."""


async def read_body(headers: Mapping[str, str], receive: Receive, *, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return the whole body; raises ApiError (413, 415) before more than `limit` bytes are kept, or ClientGoneError."""
    if headers.get("content-encoding", "identity") != "identity":
        raise ApiError("Send the body uncompressed.", status=415, code="unsupported_encoding")
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    n_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes > limit:
            raise _too_large(limit)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limit: int) -> ApiError:
    return ApiError(
        f"The request is larger than {limit // (1024 * 1024)} MiB.",
        status=413,
        code="request_too_large",
        headers={"Connection": "close"},  # the rest of the body is not read
    )


def read_json(raw: bytes) -> dict[str, Any]:
    """Return the object in these bytes; raises ApiError (400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"We could not parse the JSON body of your request: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.", code="invalid_json")
    return body
