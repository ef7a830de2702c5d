"""Endpoints over HTTP: who speaks, what is asked, and which weights are to answer. Knows no dialect."""

from dataclasses import replace

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from apps.gateway.answers import StreamedAnswer, WholeAnswer
from apps.gateway.bodies import INVALID_JSON, ClientGoneError, mend_halves, read_body
from apps.gateway.call import ModelCall, new_exchange_id
from apps.gateway.capture_policy import may_train
from apps.gateway.desk import Desk
from apps.gateway.dialect import Dialect, Json, ModelRequest
from apps.gateway.errors import ApiError, render_error, render_openai, unknown_model
from apps.gateway.limits import Admission
from apps.gateway.placement import find_affinity
from apps.gateway.routes import KeyRoute, VersionRoute
from apps.gateway.sessions import find_session_key, find_trajectory_id


class ModelEndpoint:
    """One dialect's model calls as an ASGI application."""

    def __init__(self, desk: Desk, dialect: Dialect) -> None:
        self.desk = desk
        self.dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange_id = new_exchange_id()
        scope["claw.exchange_id"] = exchange_id
        try:
            call = await self._open(scope, receive, exchange_id)
            admission = await self._admit(call)
        except ClientGoneError:
            pass
        except ApiError as error:
            response = render_error(error, request_id=exchange_id, render_body=self.dialect.render_error)
            await response(scope, receive, send)
        else:
            with admission:
                kind = StreamedAnswer if call.request.is_streamed else WholeAnswer
                await kind(self.desk, call, send).give(scope, receive)

    async def _admit(self, call: ModelCall) -> Admission:
        """Return the call's admission under the limits of its key; raises ApiError (429)."""
        limits = call.key.limits
        n_tokens = call.estimate_tokens() if limits else 0
        admission = await self.desk.limiter.admit(
            limits, call_id=call.exchange_id, n_tokens=n_tokens, dialect=self.dialect.name
        )
        admission.count_tokens = call.count_tokens
        call.limits = admission.state
        return admission

    async def _open(self, scope: Scope, receive: Receive, exchange_id: str) -> ModelCall:
        """Return the call if it may be made; raises ApiError."""
        headers = read_headers(scope)
        key = scope.get("claw.key") or await self.desk.identify(headers)
        raw, request = await self._read(await read_body(headers, receive), key)
        session_key = find_session_key(headers, request.body, raw, key_session=key.session)
        affinity = find_affinity(session_key, (request.chat_form or request.body).get("messages") or ())
        version = await find_version(self.desk, key, request.model, session=affinity)
        trajectory_id = scope.get("claw.trajectory_id") or find_trajectory_id(headers, request.body)
        trajectory_id = trajectory_id or request.trajectory_id
        if trajectory_id:
            await self.desk.trajectories.admit(trajectory_id, project_id=key.project_id)
        return ModelCall(
            exchange_id=exchange_id,
            dialect=self.dialect,
            key=key,
            version=version,
            request=request,
            raw_request=raw,
            headers=headers,
            session_key=session_key,
            affinity=affinity,
            trajectory_id=trajectory_id,
            may_train=may_train(headers),
            forms=self.desk.prompt_forms,
        )

    async def _read(self, raw: bytes, key: KeyRoute) -> tuple[bytes, ModelRequest]:
        """Return the body as it can be kept, and the request in it; raises ApiError."""
        try:
            return raw, await self.dialect.read_request(raw, desk=self.desk, key=key)
        except ApiError as error:
            mended = mend_halves(raw) if error.code == INVALID_JSON else raw
            if mended == raw:
                raise
        request = await self.dialect.read_request(mended, desk=self.desk, key=key)
        return mended, replace(request, dropped=request.dropped | {"half_characters": "each is U+FFFD now"})


class UnkeptEndpoint:
    """Calls that leave nothing in the pool, as an ASGI application."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = new_exchange_id()
        scope["claw.exchange_id"] = request_id
        try:
            response = await self.answer(scope, receive, request_id=request_id)
        except ClientGoneError:
            return
        except ApiError as error:
            response = render_error(error, request_id=request_id, render_body=self.render_error)
        await response(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, *, request_id: str) -> Response:
        """Return the answer; raises ApiError and ClientGoneError."""
        raise NotImplementedError

    def render_error(self, error: ApiError) -> Json:
        """Return an error's body in the client's words."""
        return render_openai(error)


def read_headers(scope: Scope) -> dict[str, str]:
    """Return the request's headers, their names in lower case; of one that is there twice the last."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def find_version(desk: Desk, key: KeyRoute, model: str, *, session: str = "") -> VersionRoute:
    """Return the weights that the key means by `model`; raises ApiError (404 that lists what it could mean, 503)."""
    version = await desk.find_version(key, model, session=session)
    if version is None:
        raise unknown_model(model, known=list(desk.routes.snapshot.names(key.project_id)))
    return version
