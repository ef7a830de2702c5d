"""Anthropic's messages over HTTP."""

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope

from apps.gateway.bodies import mend_halves, read_body
from apps.gateway.departure import Departure
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json
from apps.gateway.endpoint import ModelEndpoint, UnkeptEndpoint, read_headers
from apps.gateway.errors import ApiError, name_request
from apps.gateway.messages.behaviour import MessagesDialect
from apps.gateway.messages.count import count_tokens
from apps.gateway.messages.errors import render_anthropic
from apps.gateway.messages.shapes import read_count_request


def make_messages_endpoint(desk: Desk) -> ModelEndpoint:
    """Return `POST /v1/messages` as an ASGI application."""
    return ModelEndpoint(desk, MessagesDialect())


class TokenCount(UnkeptEndpoint):
    """`POST /v1/messages/count_tokens`."""

    async def answer(self, scope: Scope, receive: Receive, *, request_id: str) -> Response:
        headers = read_headers(scope)
        key = await self.desk.identify(headers)
        model, prompt = read_count_request(mend_halves(await read_body(headers, receive)))
        admission = await self.desk.limiter.admit(key.limits, call_id=request_id, n_tokens=0, dialect="messages")
        with admission, Departure(receive):
            count = await count_tokens(model, prompt, desk=self.desk, key=key)
        told = name_request(request_id) | admission.state.headers("messages")
        return Response(orjson.dumps(count), headers=told, media_type="application/json")

    def render_error(self, error: ApiError) -> Json:
        return render_anthropic(error)
