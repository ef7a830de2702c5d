"""The list of models over HTTP."""

import orjson
from starlette.requests import Request
from starlette.responses import Response

from apps.gateway.desk import Desk
from apps.gateway.model_list.behaviour import describe_model, list_models


class ModelList:
    """`GET /v1/models[/{id}]`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def list(self, request: Request) -> Response:
        key = await self.desk.identify(request.headers)
        return Response(orjson.dumps(list_models(self.desk.routes, key)), media_type="application/json")

    async def detail(self, request: Request) -> Response:
        key = await self.desk.identify(request.headers)
        card = await describe_model(self.desk.routes, key, request.path_params["model"])
        return Response(orjson.dumps(card), media_type="application/json")
