"""The door for agents: takes model calls off the ASGI stream before Django sees them.

Also answers the server's lifespan messages, which Channels' router does not know.
"""

import asyncio
import gc
from collections.abc import Awaitable

from django.conf import settings
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.core.ids import new_id
from apps.gateway.chat.http import make_chat_endpoint
from apps.gateway.clawr1.http import ClawR1Door
from apps.gateway.clawr1.paths import find_door_scope
from apps.gateway.completions.http import make_completion_endpoint
from apps.gateway.desk import Desk
from apps.gateway.embeddings.http import Embeddings
from apps.gateway.errors import ApiError
from apps.gateway.generate.http import make_generate_endpoint
from apps.gateway.health import Health
from apps.gateway.messages.http import TokenCount, make_messages_endpoint
from apps.gateway.model_list.http import ModelList
from apps.gateway.paths import find_gateway_scope
from apps.gateway.refusals import CRASH_IS_TOLD, handle_api_error, handle_crash, handle_http_error
from apps.gateway.responses.http import StoredResponses, make_responses_endpoint

COLLECT_AFTER = (20_000, 20, 20)  # objects; times the generation before


class GatewayDoor:
    """Routes model calls (see `paths`) and the health paths to the gateway and everything else to `rest`."""

    def __init__(self, rest: ASGIApp) -> None:
        self.rest = rest
        self._gateway: Gateway | None = None
        self._desk: Desk | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and (inner := _find_inner_scope(scope)) is not None:
            gateway = self._gateway or await self.start()
            await gateway(inner, receive, send)
        else:
            await self.rest(scope, receive, send)

    async def start(self) -> "Gateway":
        """Start the gateway in the running event loop, once."""
        async with self._lock:
            if self._gateway is None:
                self._desk = Desk()
                await self._desk.start()
                self._gateway = Gateway(self._desk)
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
                # What is loaded by now stays, and what calls bring is parsed JSON, of which there is much and none in
                # circles: the collector, which they set off, need not walk through either each time.
                gc.freeze()
                gc.set_threshold(*COLLECT_AFTER)
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _find_inner_scope(scope: Scope) -> Scope | None:
    """Return the scope as the gateway's table has it, None when the request is not for the gateway."""
    return find_door_scope(scope, is_open=bool(settings.CLAW.clawr1_project)) or find_gateway_scope(scope)


class Gateway:
    """The gateway's own application. Model calls, which answer their own errors, go straight to their endpoint: the
    way through Starlette's middleware and its table takes a fifth of what all else of ours takes.
    """

    def __init__(self, desk: Desk) -> None:
        self._calls = make_endpoints(desk)
        self._table = make_table(desk, self._calls)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._calls.get(scope["path"]) if scope["method"] == "POST" else None
        if call is not None:
            return await _answer(call, scope, receive, send)
        scope = {**scope, "claw.exchange_id": new_id("req")}  # no call that is kept, but its answer has a name too
        try:
            await self._table(scope, receive, send)
        except Exception:
            if not scope.get(CRASH_IS_TOLD):
                raise


async def _answer(call: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Have a call answered, by an error should it crash before its answer begins."""
    has_begun = False

    def pass_on(message: Message) -> Awaitable[None]:
        nonlocal has_begun
        has_begun = True
        return send(message)

    try:
        await call(scope, receive, pass_on)
    except Exception as error:  # the edge
        response = await handle_crash(Request(scope), error)
        if has_begun:
            raise  # the server ends the connection, so that nobody takes what came for a whole answer
        await response(scope, receive, send)


def make_endpoints(desk: Desk) -> dict[str, ASGIApp]:
    """Return what answers model calls, all of them POSTs."""
    return {
        "/v1/chat/completions": make_chat_endpoint(desk),
        "/v1/completions": make_completion_endpoint(desk),
        "/v1/embeddings": Embeddings(desk),
        "/v1/responses": make_responses_endpoint(desk),
        "/v1/messages": make_messages_endpoint(desk),
        "/v1/messages/count_tokens": TokenCount(desk),
        "/v1/generate": make_generate_endpoint(desk),
    }


def make_table(desk: Desk, calls: dict[str, ASGIApp]) -> Starlette:
    """Return an explicit table of all paths."""
    models, health = ModelList(desk), Health(desk)
    routes: list[BaseRoute] = [
        *(Route(path, call, methods=["POST"]) for path, call in calls.items()),
        Route("/v1/responses/{response_id}", StoredResponses(desk).detail, methods=["GET"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{model:path}", models.detail, methods=["GET"]),
        Route("/healthz", health.healthz, methods=["GET"]),
        Route("/readyz", health.readyz, methods=["GET"]),
        Route("/api/hello", health.hello, methods=["GET"]),
        Route("/", health.hello, methods=["HEAD"]),
    ]
    if settings.CLAW.clawr1_project:
        routes += ClawR1Door(desk).routes()
    handlers = {ApiError: handle_api_error, HTTPException: handle_http_error, Exception: handle_crash}
    gateway = Starlette(routes=routes, exception_handlers=handlers)
    gateway.router.redirect_slashes = False
    return gateway
