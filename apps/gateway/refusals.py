"""What is said where no endpoint speaks, in the caller's dialect: unknown paths, wrong methods, faults of ours.

Knows which clients read which shape.
"""

from collections.abc import Callable

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from apps.gateway.dialect import Json
from apps.gateway.errors import ApiError, render_error, render_openai
from apps.gateway.messages.errors import render_anthropic
from apps.gateway.paths import speaks_anthropic

log = structlog.get_logger(__name__)

CRASH_IS_TOLD = "claw.crash_is_told"  # in a scope


async def handle_api_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for ApiError."""
    assert isinstance(error, ApiError)  # noqa: S101 (registered for it)
    return _refuse(request, error)


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths (404) and wrong methods (405)."""
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"Not allowed to {request.method} on {request.url.path} (HINT: use {allowed})."
        return _refuse(request, ApiError(message, status=405, code="method_not_allowed", headers={"Allow": allowed}))
    return _refuse(request, ApiError(f"Unknown request URL: {where}.", status=404, code="unknown_url"))


async def handle_crash(request: Request, error: Exception) -> Response:
    """A fault of ours before an answer began: the log has the details, the client a request id.

    Starlette raises it again. What is told need not reach the server: it would end a connection that is well.
    """
    log.error("gateway.crashed", exchange=request.scope.get("claw.exchange_id", ""), exc_info=error)
    request.scope[CRASH_IS_TOLD] = True
    message = "The platform made a mistake; the operators' log has the details under this request id."
    return _refuse(request, ApiError(message, status=500, code="internal_error", kind="server_error"))


def _refuse(request: Request, error: ApiError) -> Response:
    render_body: Callable[[ApiError], Json] = render_anthropic if speaks_anthropic(request) else render_openai
    return render_error(error, request_id=request.scope.get("claw.exchange_id", ""), render_body=render_body)
