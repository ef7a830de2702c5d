"""Embeddings over HTTP."""

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apps.gateway.bodies import ClientGoneError, read_body
from apps.gateway.call import new_exchange_id
from apps.gateway.departure import Departure
from apps.gateway.desk import Desk
from apps.gateway.embeddings.behaviour import fetch_embeddings
from apps.gateway.embeddings.shapes import read_embeddings_request
from apps.gateway.errors import ApiError, name_request, render_error
from apps.gateway.limits import estimate_tokens


class Embeddings:
    """`POST /v1/embeddings` as an ASGI application."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_exchange_id()
        scope["claw.exchange_id"] = request_id
        try:
            response = await self._answer(scope, receive, request_id=request_id)
        except ClientGoneError:
            return
        except ApiError as error:
            response = render_error(error, request_id=request_id)
        await response(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, *, request_id: str) -> Response:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = scope.get("claw.key") or await self.desk.identify(headers)
        raw = await read_body(headers, receive)
        request = read_embeddings_request(raw)
        n_tokens, n_used = estimate_tokens(len(raw), max_tokens=1), 0
        with await self.desk.limiter.admit(key.limits, call_id=request_id, n_tokens=n_tokens) as admission:
            admission.count_tokens = lambda: n_used
            with Departure(receive):
                answer, version = await fetch_embeddings(self.desk, key, request)
            n_used = answer["usage"]["total_tokens"]
        told = name_request(request_id) | {"x-claw-version": version.label} | admission.state.openai_headers()
        return Response(orjson.dumps(answer), headers=told, media_type="application/json")
