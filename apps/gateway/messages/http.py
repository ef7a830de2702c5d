"""Anthropic's messages over HTTP."""

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apps.gateway.bodies import ClientGoneError, read_body
from apps.gateway.call import new_exchange_id
from apps.gateway.desk import Desk
from apps.gateway.endpoint import ModelEndpoint
from apps.gateway.errors import ApiError, name_request, render_error
from apps.gateway.messages.behaviour import MessagesDialect
from apps.gateway.messages.count import count_tokens
from apps.gateway.messages.errors import render_anthropic


def make_messages_endpoint(desk: Desk) -> ModelEndpoint:
    """Return `POST /v1/messages` as an ASGI application."""
    return ModelEndpoint(desk, MessagesDialect())


class TokenCount:
    """`POST /v1/messages/count_tokens`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_exchange_id()
        scope["claw.exchange_id"] = request_id
        try:
            response = await self._answer(scope, receive, request_id)
        except ClientGoneError:
            return
        except ApiError as error:
            response = render_error(error, request_id=request_id, render_body=render_anthropic)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, request_id: str) -> Response:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = await self.desk.identify(headers)
        count = await count_tokens(await read_body(headers, receive), desk=self.desk, key=key)
        return Response(orjson.dumps(count), headers=name_request(request_id), media_type="application/json")
