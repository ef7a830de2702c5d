"""The door for agents: takes model calls off the ASGI stream before Django sees them.

Also answers the server's lifespan messages, which Channels' router does not know.
"""

import asyncio

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.gateway.chat.http import make_chat_endpoint
from apps.gateway.desk import Desk
from apps.gateway.errors import ApiError, handle_api_error, render_error
from apps.gateway.generate.http import make_generate_endpoint
from apps.gateway.health import Health
from apps.gateway.model_list.http import ModelList
from apps.gateway.responses.http import StoredResponses, make_responses_endpoint

log = structlog.get_logger(__name__)

_HEALTH_PATHS = frozenset({"/healthz", "/readyz"})


class GatewayDoor:
    """Routes `/v1/*`, `/t/<trajectory id>/v1/*` and the health paths to the gateway and everything else to `rest`."""

    def __init__(self, rest: ASGIApp) -> None:
        self.rest = rest
        self._gateway: Starlette | None = None
        self._desk: Desk | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and (inner := _gateway_scope(scope)) is not None:
            gateway = self._gateway or await self.start()
            await gateway(inner, receive, send)
        else:
            await self.rest(scope, receive, send)

    async def start(self) -> Starlette:
        """Start the gateway in the running event loop, once."""
        async with self._lock:
            if self._gateway is None:
                self._desk = Desk()
                await self._desk.start()
                self._gateway = make_gateway(self._desk)
            return self._gateway

    async def stop(self) -> None:
        """Stop it; nothing is lost that was answered."""
        async with self._lock:
            if self._desk is not None:
                await self._desk.stop()
            self._desk = self._gateway = None

    async def _live(self, receive: Receive, send: Send) -> None:
        """Follow the server's start and stop."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _gateway_scope(scope: Scope) -> Scope | None:
    """Return the scope with a path below /v1 (the trajectory set apart), None when the path is not the gateway's."""
    path: str = scope["path"]
    if path.startswith("/v1/") or path in _HEALTH_PATHS or path == "/v1":
        return scope
    if not path.startswith("/t/"):
        return None
    trajectory_id, _, rest = path[3:].partition("/")
    if not rest.startswith("v1/"):
        return None
    return {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "claw.trajectory_id": trajectory_id}


def make_gateway(desk: Desk) -> Starlette:
    """Return the gateway's own application: an explicit table of paths."""
    models, health = ModelList(desk), Health(desk)
    routes = [
        Route("/v1/chat/completions", make_chat_endpoint(desk), methods=["POST"]),
        Route("/v1/responses", make_responses_endpoint(desk), methods=["POST"]),
        Route("/v1/responses/{response_id}", StoredResponses(desk).detail, methods=["GET"]),
        Route("/v1/generate", make_generate_endpoint(desk), methods=["POST"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.detail, methods=["GET"]),
        Route("/healthz", health.healthz, methods=["GET"]),
        Route("/readyz", health.readyz, methods=["GET"]),
    ]
    handlers = {ApiError: handle_api_error, HTTPException: handle_http_error, Exception: handle_crash}
    gateway = Starlette(routes=routes, exception_handlers=handlers)
    gateway.router.redirect_slashes = False
    return gateway


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths (404) and wrong methods (405) in OpenAI's shape."""
    assert isinstance(error, HTTPException)  # noqa: S101 (registered for it)
    where = f"{request.method} {request.url.path}"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"Not allowed to {request.method} on {request.url.path} (HINT: use {allowed})."
        return render_error(ApiError(message, status=405, code="method_not_allowed", headers={"Allow": allowed}))
    return render_error(ApiError(f"Unknown request URL: {where}.", status=404, code="unknown_url"))


async def handle_crash(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has the details (Starlette raises it again for the server), the client a request id."""
    request_id = request.scope.get("claw.exchange_id", "")
    log.error("gateway.crashed", exchange=request_id, error=repr(error))
    message = "The platform made a mistake; the operators' log has the details under this request id."
    return render_error(
        ApiError(message, status=500, code="internal_error", kind="server_error"), request_id=request_id
    )
