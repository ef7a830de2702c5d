"""The list of models over HTTP, in the shape that the caller reads."""

from starlette.requests import Request
from starlette.responses import Response

from apps.gateway.desk import Desk
from apps.gateway.endpoint import find_version
from apps.gateway.errors import answer_json
from apps.gateway.model_list.behaviour import list_models
from apps.gateway.model_list.shapes import (
    render_anthropic_card,
    render_anthropic_list,
    render_openai_card,
    render_openai_list,
)
from apps.gateway.paths import speaks_anthropic


class ModelList:
    """`GET /v1/models[/{id}]`; the id may also be `slug@v3`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def list(self, request: Request) -> Response:
        key = await self.desk.identify(request.headers)
        render = render_anthropic_list if speaks_anthropic(request) else render_openai_list
        return answer_json(request, render(list_models(self.desk.routes, key)))

    async def detail(self, request: Request) -> Response:
        key = await self.desk.identify(request.headers)
        name = request.path_params["model"]
        render = render_anthropic_card if speaks_anthropic(request) else render_openai_card
        return answer_json(request, render(name, await find_version(self.desk, key, name)))
