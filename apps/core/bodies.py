"""Bodies of requests for pages and the REST API have a measure and a time: left alone, Django first keeps on the disk
all that comes, from whomever and for whatever.
"""

import asyncio
import re

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apps.core.parsers import LARGE_BODY_BYTES
from apps.core.problems import CONTENT_TYPE, describe_problem

FILE_BYTES = 4 * 1024**3  # twice what an import takes, which says so in words of its own
IDLE_S = 30.0  # the longest pause between two pieces
_TAKES_FILES = re.compile(r"(/api/v1|/p/[^/]+)/imports/?")
_MIB = 1024 * 1024


class BodyFaultError(Exception):
    """The rest of a body is not read."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class BoundedBodies:
    """An ASGI application that is given no body which is too large or does not go on."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = _Body(receive, limit=FILE_BYTES if _TAKES_FILES.fullmatch(scope["path"]) else LARGE_BODY_BYTES)
        try:
            body.check_length(Headers(scope=scope).get("content-length", ""))
            await self.app(scope, body.receive, send)
        except BodyFaultError as fault:
            await _render(fault, path=scope["path"])(scope, receive, send)


class _Body:
    def __init__(self, receive: Receive, *, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._n_bytes = 0
        self._has_more = True

    def check_length(self, told: str) -> None:
        """Raise BodyFaultError if it is too large by its own word."""
        if told.isdecimal():
            self._check(int(told))

    async def receive(self) -> Message:
        """Return what comes next, as ASGI has it; raises BodyFaultError."""
        if not self._has_more:  # what is waited for now is that the client leaves
            return await self._receive()
        try:
            async with asyncio.timeout(IDLE_S):
                message = await self._receive()
        except TimeoutError:
            words = f"The request's body did not arrive: it may pause for {IDLE_S:g} s."
            raise BodyFaultError(408, "request_timeout", words) from None
        self._n_bytes += len(message.get("body", b""))
        self._check(self._n_bytes)
        self._has_more = message.get("more_body", False)
        return message

    def _check(self, n_bytes: int) -> None:
        if n_bytes > self._limit:
            raise BodyFaultError(413, "request_too_large", f"the body may have {self._limit // _MIB} MiB")


def _render(fault: BodyFaultError, *, path: str) -> Response:
    headers = {"Connection": "close"}  # the rest is not read
    if not path.startswith("/api/"):
        return PlainTextResponse(fault.detail, status_code=fault.status, headers=headers)
    told = describe_problem(status=fault.status, code=fault.code, detail=fault.detail)
    return JSONResponse(told, status_code=fault.status, headers=headers, media_type=CONTENT_TYPE)
