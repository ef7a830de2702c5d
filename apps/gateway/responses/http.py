"""Responses over HTTP."""

from starlette.requests import Request
from starlette.responses import Response

from apps.gateway.desk import Desk
from apps.gateway.endpoint import ModelEndpoint
from apps.gateway.errors import ApiError, answer_json, bad_request
from apps.gateway.responses.behaviour import ResponsesDialect
from apps.gateway.responses.memory import load_response


def make_responses_endpoint(desk: Desk) -> ModelEndpoint:
    """Return `POST /v1/responses` as an ASGI application."""
    return ModelEndpoint(desk, ResponsesDialect())


class StoredResponses:
    """`GET /v1/responses/{id}`: an answer once more, from the pool."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def detail(self, request: Request) -> Response:
        key = await self.desk.identify(request.headers)
        if request.query_params.get("stream") == "true":
            raise bad_request("A stored response cannot be streamed: leave `stream` out.", param="stream")
        response_id = request.path_params["response_id"]
        found = await load_response(response_id, project_id=key.project_id, writer=self.desk.writer)
        if found is None:
            message = f"Response with id '{response_id[:80]}' not found."
            raise ApiError(message, status=404, code="response_not_found", param="response_id")
        return answer_json(request, found)
