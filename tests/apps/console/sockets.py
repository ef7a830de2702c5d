"""Sockets of pages, for tests: through the real stack of middlewares."""

import json
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.test import Client

LONG = 20  # seconds; a busy machine takes some


class Socket:
    """A socket of a page. Tests take theirs from the fixture `dial`, which closes what they leave open."""

    def __init__(
        self, browser: Client, slug: str, *, origin: str = "http://127.0.0.1", path: str = "", query: str = ""
    ) -> None:
        from clawplatform.asgi import sockets  # noqa: PLC0415 (importing it builds the application)

        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items())
        headers = [(b"cookie", cookies.encode()), (b"origin", origin.encode()), (b"host", b"127.0.0.1")]
        scope = {
            "type": "websocket",
            "path": path or f"/ws/p/{slug}/news",
            "query_string": query.encode(),
            "headers": headers,
            "subprotocols": [],
        }
        untyped: Any = ApplicationCommunicator
        self.line = untyped(sockets, scope)

    async def open(self) -> dict[str, Any]:
        """Connect; return the first message of the server."""
        await self.line.send_input({"type": "websocket.connect"})
        return await self.receive()

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = await self.line.receive_output(timeout=LONG)
        return message

    async def hear(self) -> dict[str, Any]:
        """Return the next news."""
        news: dict[str, Any] = json.loads((await self.receive())["text"])
        return news

    async def close(self) -> None:
        """Hang up as a browser does, and see the server's side end of itself."""
        await self.line.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.line.wait(timeout=LONG)
