"""Errors that clients are told, in OpenAI's shape unless a dialect has its own. Knows nothing of what went wrong."""

from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

LONGEST_MESSAGE = 2000  # letters: some messages quote what was sent
RETRY_AFTER_S = 5
RETRY_HEADER = "x-should-retry"  # OpenAI's and Anthropic's packages obey it; by themselves they try a 409 again
_PASSING = frozenset({408, 429, 503})
_LASTING = frozenset({"engine_misconfigured", "insufficient_quota"})  # codes: a person has to act, or a day to pass


class ApiError(Exception):
    """What the client is told instead of an answer. `param` names the field that is at fault."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
        headers: dict[str, str] | None = None,
    ) -> None:
        message = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}…"
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind
        self.headers = headers or {}
        self.request_id = ""  # for dialects that say it in the body too


def bad_request(message: str, *, param: str | None = None, code: str | None = None) -> ApiError:
    """The client has to change the request."""
    return ApiError(message, param=param, code=code)


def bad_key(*, is_given: bool) -> ApiError:
    """No key, or one that we do not know, has expired or is switched off."""
    said = "Incorrect API key provided" if is_given else "You didn't provide an API key"
    return ApiError(
        f"{said}: send a key of this platform as `Authorization: Bearer claw-…` or `x-api-key`.",
        status=401,
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )


def unknown_model(name: str, *, known: list[str]) -> ApiError:
    """The project has no such model; the message lists those it has."""
    hint = f"This key can use: {', '.join(known)}." if known else "This key's project has no model yet."
    return ApiError(
        f"The model `{name[:200]}` does not exist or you do not have access to it. {hint}",
        status=404,
        code="model_not_found",
        param="model",
    )


def unavailable(message: str, *, code: str = "engine_unavailable", retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    """A part behind us does not answer; the same request may work later."""
    headers = {"Retry-After": str(retry_after_s)}
    return ApiError(message, status=503, code=code, kind="server_error", headers=headers)


def bad_answer(message: str) -> ApiError:
    """A part behind us answered what is no answer; whether it will the next time nobody knows."""
    return ApiError(message, status=502, code="engine_broken", kind="server_error")


def render_openai(error: ApiError) -> dict[str, Any]:
    """Return the error's body in OpenAI's shape."""
    return {"error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.code}}


def name_request(request_id: str) -> dict[str, str]:
    """Return the headers in which OpenAI's and Anthropic's clients look for a request's id."""
    return {"x-request-id": request_id, "request-id": request_id}


def answer_json(request: Request, body: object, *, status: int = 200) -> Response:
    """Return what is asked for beside model calls, under the id that the door gave the request."""
    headers = name_request(request.scope["claw.exchange_id"])
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return Response(orjson.dumps(body), status, headers, "application/json")


def advise_retry(error: ApiError) -> dict[str, str]:
    """Return the header that says whether the same request may work in a moment; none where nobody knows."""
    if error.status < 500 or error.status == 501 or error.status in _PASSING:
        is_passing = error.status in _PASSING and error.code not in _LASTING
        return {RETRY_HEADER: "true" if is_passing else "false"}
    return {}


def render_error(
    error: ApiError, *, request_id: str = "", render_body: Callable[[ApiError], dict[str, Any]] = render_openai
) -> Response:
    """Return the HTTP answer for an error, in the shape that `render_body` gives it."""
    error.request_id = request_id or error.request_id
    headers = error.headers | advise_retry(error) | (name_request(request_id) if request_id else {})
    return Response(orjson.dumps(render_body(error)), error.status, headers, "application/json")
