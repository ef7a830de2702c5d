"""Errors in Anthropic's shape. Knows nothing of what went wrong."""

import re

from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
}
# vLLM counts tokens, or characters when there are so many of them that counting tokens would take long.
_TOO_LONG = re.compile(
    r"maximum context length is (\d+) tokens.*?contains (?:at least )?(\d+) (input tokens|characters)"
)


def render_anthropic(error: ApiError) -> Json:
    """Return the error's body in Anthropic's shape."""
    return {
        "type": "error",
        "error": {"type": _find_type(error.status), "message": _find_words(error)},
        "request_id": error.request_id or None,
    }


def _find_type(status: int) -> str:
    if status in _TYPES:
        return _TYPES[status]
    return "overloaded_error" if status > 500 else "invalid_request_error"


def _find_words(error: ApiError) -> str:
    """Return the message. Clients of this dialect compact their history when they read that the prompt is too long."""
    if error.code != "context_length_exceeded":
        return error.message
    found = _TOO_LONG.search(error.message)
    if found is None:
        return f"prompt is too long: {error.message}"
    limit, n, unit = int(found[1]), int(found[2]), found[3]
    n_tokens = n if unit == "input tokens" else limit + 1  # so many at least
    return f"prompt is too long: {n_tokens} tokens > {limit} maximum ({error.message})"
