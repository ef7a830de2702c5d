"""Embeddings over HTTP."""

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope

from apps.gateway.bodies import mend_halves, read_body
from apps.gateway.departure import Departure
from apps.gateway.embeddings.behaviour import fetch_embeddings
from apps.gateway.embeddings.shapes import read_embeddings_request
from apps.gateway.endpoint import UnkeptEndpoint, read_headers
from apps.gateway.errors import name_request
from apps.gateway.limits import estimate_tokens


class Embeddings(UnkeptEndpoint):
    """`POST /v1/embeddings`."""

    async def answer(self, scope: Scope, receive: Receive, *, request_id: str) -> Response:
        headers = read_headers(scope)
        key = scope.get("claw.key") or await self.desk.identify(headers)
        raw = mend_halves(await read_body(headers, receive))
        request = read_embeddings_request(raw)
        n_tokens, n_used = estimate_tokens(len(raw), max_tokens=1), 0
        with await self.desk.limiter.admit(key.limits, call_id=request_id, n_tokens=n_tokens) as admission:
            admission.count_tokens = lambda: n_used
            with Departure(receive):
                answer, version = await fetch_embeddings(self.desk, key, request)
            n_used = answer["usage"]["total_tokens"]
        told = name_request(request_id) | {"x-claw-version": version.label} | admission.state.headers("embeddings")
        return Response(orjson.dumps(answer), headers=told, media_type="application/json")
