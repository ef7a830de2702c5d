"""Claw-R1's paths over HTTP: who may come in, and which service each address is. Errors have its shape, `{"detail"}`.

Model calls go through the same endpoints as everyone's, under the key of this door.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from apps.accounts.models import ApiKey
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.gateway.bodies import ClientGoneError, mend_halves, read_body
from apps.gateway.chat.behaviour import ChatDialect
from apps.gateway.clawr1 import behaviour
from apps.gateway.clawr1.shapes import B, CompleteBody, RegisterBody, RewardBody, SubmitBody, read_body_as
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json, ModelRequest
from apps.gateway.endpoint import ModelEndpoint
from apps.gateway.errors import ApiError, answer_json, render_error, render_openai, unavailable
from apps.gateway.generate.behaviour import GenerateDialect
from apps.gateway.generate.http import GenerateEndpoint
from apps.gateway.routes import KeyRoute

KEY_AGE_S = 5.0  # so long a key that was switched off may still open the door
NO_VERIFIER = (
    "Nobody here has a word on this response: switch on a rule of the project (a grader, named after the data set), or "
    "give rewards with the steps (/submit_steps), at the end (complete_trajectory), or as labels. "
)
T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Json]]


class RawChatDialect(ChatDialect):
    """Tool calls stay in the text, as Claw-R1's clients parse them themselves."""

    async def read_request(self, raw: bytes, *, desk: Desk, key: KeyRoute) -> ModelRequest:
        request = await super().read_request(raw, desk=desk, key=key)
        if not request.engine_body.get("tools") or request.engine_body.get("tool_choice"):
            return request
        return replace(request, engine_body={**request.engine_body, "tool_choice": "none"})


class DetailedGenerateDialect(GenerateDialect):
    """The token door with this door's errors."""

    def render_error(self, error: ApiError) -> Json:
        return _detail(error)


class ClawR1Door:
    """All of Claw-R1's addresses."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._networks = [ip_network(network) for network in settings.CLAW.clawr1_networks]
        self._key: ApiKey | None = None
        self._key_read_at = float("-inf")

    def routes(self) -> list[BaseRoute]:
        """Return an explicit table, as Claw-R1 has it; two spellings are those of its older clients."""
        base = "/{trajectory_uid}/{prompt_uid}/v1"
        chat, generate = (
            ModelEndpoint(self.desk, RawChatDialect()),
            GenerateEndpoint(self.desk, DetailedGenerateDialect()),
        )
        handlers: dict[str, Handler] = {
            "/init_trajectory": self.init_trajectory,
            "/register_trajectory": self.register_trajectory,
            f"{base}/register_trajectory": self.register_trajectory,
            f"{base}/complete_trajectory": self.complete_trajectory,
            f"{base}/trajectory/complete": self.complete_trajectory,
            "/complete_trajectory/{trajectory_uid}": self.complete_trajectory,
            "/submit_steps": self.submit_steps,
            "/compute_reward": self.compute_reward,
        }
        return [
            Route(f"{base}/chat/completions", _ModelCalls(self, chat, render_openai), methods=["POST"]),
            Route("/generate", _ModelCalls(self, generate, _detail), methods=["POST"]),
            *(Route(path, _answer(handler), methods=["POST"]) for path, handler in handlers.items()),
        ]

    async def admit(self, scope: Scope) -> ApiKey:
        """Return the key of this door for a client that may use it. Raises ApiError (403, 503)."""
        host = scope["client"][0] if scope.get("client") else ""
        if not self._is_near(host):
            raise ApiError(
                f"This door is closed to {host or 'you'}: CLAW_CLAWR1_NETWORKS does not name that address.",
                status=403,
                code="forbidden",
            )
        if self._key is None or time.monotonic() - self._key_read_at > KEY_AGE_S:
            self._key = await ask_database(lambda: behaviour.find_door_key(settings.CLAW.clawr1_project))
            self._key_read_at = time.monotonic()
        return self._key

    def _is_near(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    async def find_route(self, key: ApiKey) -> KeyRoute:
        """Return the key as model calls know it. Raises ApiError (503) while no snapshot has it."""
        for _ in range(2):
            if (found := self.desk.routes.snapshot.keys.get(key.sha256)) is not None:
                return found
            await self.desk.routes.refresh()
        raise unavailable("The key of this door is not known yet.", code="starting")

    async def init_trajectory(self, request: Request) -> Json:
        key = await self.admit(request.scope)
        trajectory = await ask_database(lambda: behaviour.init_trajectory(key))
        root = settings.CLAW.base_url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"
        return {"trajectory_uid": trajectory.pk, "base_url": f"{root}/{trajectory.pk}/{behaviour.NO_PROMPT}/v1"}

    async def register_trajectory(self, request: Request) -> Json:
        key, body = await self.admit(request.scope), await _read(request, RegisterBody)
        uid = request.path_params.get("trajectory_uid") or body.trajectory_uid
        if not uid:
            raise InvalidInput("trajectory_uid is required", field="trajectory_uid")
        prompt_uid = request.path_params.get("prompt_uid", behaviour.NO_PROMPT)
        await ask_database(lambda: behaviour.register_trajectory(key, uid, prompt_uid, body))
        return {"status": "ok"}

    async def complete_trajectory(self, request: Request) -> Json:
        key, body = await self.admit(request.scope), await _read(request, CompleteBody)
        uid = request.path_params["trajectory_uid"]
        prompt_uid = request.path_params.get("prompt_uid", behaviour.NO_PROMPT)
        await ask_database(lambda: behaviour.complete_trajectory(key, uid, prompt_uid, body))
        return {"status": "ok"}

    async def submit_steps(self, request: Request) -> Json:
        key, body = await self.admit(request.scope), await _read(request, SubmitBody)
        channel = request.query_params.get("channel", "train")
        if channel not in {"train", "val"}:
            raise InvalidInput("channel is train or val", field="channel")
        n_steps = await ask_database(lambda: behaviour.submit_steps(key, body.steps, channel=channel))
        return {"accepted": n_steps}

    async def compute_reward(self, request: Request) -> Json:
        key, body = await self.admit(request.scope), await _read(request, RewardBody)
        try:
            reward, info = await ask_database(lambda: behaviour.find_reward(key, body))
        except NotFound as error:
            raise ApiError(f"{NO_VERIFIER}({error.message})", status=501, code="no_verifier") from error
        return {"reward_score": reward, "reward_extra_info": info}


class _ModelCalls:
    """A model endpoint behind this door: its clients are let in by address, and their calls placed by theirs."""

    def __init__(self, door: ClawR1Door, endpoint: ModelEndpoint, render_body: Callable[[ApiError], Json]) -> None:
        self.door = door
        self.endpoint = endpoint
        self.render_body = render_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope = await self._place(scope)
        except (ApiError, ServiceError) as error:
            response = _refuse(scope, error, render_body=self.render_body)
            return await response(scope, receive, send)
        return await self.endpoint(scope, receive, send)

    async def _place(self, scope: Scope) -> Scope:
        key = await self.door.admit(scope)
        placed = {**scope, "claw.key": await self.door.find_route(key)}
        names = scope["path_params"]
        if uid := names.get("trajectory_uid"):
            placed["claw.trajectory_id"] = await ask_database(
                lambda: behaviour.place_call(key, uid, names["prompt_uid"])
            )
        return placed


async def ask_database(function: Callable[[], T]) -> T:
    """Return what the synchronous function returns, run beside the event loop."""

    def run() -> T:
        try:
            return function()
        finally:
            connections.close_all()  # threads come and go; their connections must not stay

    return await sync_to_async(run, thread_sensitive=False)()


def _answer(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            return answer_json(request, await handler(request))
        except (ApiError, ServiceError) as error:
            return _refuse(request.scope, error, render_body=_detail)

    return answer


async def _read(request: Request, shape: type[B]) -> B:
    try:
        return read_body_as(shape, mend_halves(await read_body(request.headers, request.receive)))
    except ClientGoneError as error:
        raise ApiError("The request broke off.", status=400, code="client_gone") from error


def _refuse(scope: Scope, error: ApiError | ServiceError, *, render_body: Callable[[ApiError], Json]) -> Response:
    return render_error(_as_api_error(error), request_id=scope["claw.exchange_id"], render_body=render_body)


def _as_api_error(error: ApiError | ServiceError) -> ApiError:
    if isinstance(error, ApiError):
        return error
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return ApiError(error.message, status=error.status, code=error.code, param=error.field or None, headers=headers)


def _detail(error: ApiError) -> Json:
    return {"detail": error.message}
