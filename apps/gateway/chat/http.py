"""Chat completions over HTTP: reads the request, streams the answer, holds back its end until the call is durable."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing
from datetime import UTC, datetime
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from apps.core.contracts.exchange import ABORTED, ERROR
from apps.gateway.bodies import ClientGoneError, read_body
from apps.gateway.chat.behaviour import ENGINE_PATH, ChatCall, new_exchange_id, read_refusal
from apps.gateway.chat.shapes import read_chat_request
from apps.gateway.departure import Departure
from apps.gateway.desk import Desk
from apps.gateway.engines import EngineBrokenError, EngineRefusedError, EngineUnavailableError, Reply
from apps.gateway.errors import ApiError, render_error, unavailable, unknown_model
from apps.gateway.sessions import TRAJECTORY_HEADER
from apps.gateway.sse import DONE, EventReader, LineTooLongError, event

_CLIENT_GONE = "the client closed the connection"
_SHUTDOWN = "the gateway was stopped"


class ChatCompletions:
    """`POST /v1/chat/completions` as an ASGI application."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange_id = new_exchange_id()
        scope["claw.exchange_id"] = exchange_id
        try:
            call = await self._open(scope, receive, exchange_id)
        except ClientGoneError:
            return
        answer = _StreamedAnswer(self.desk, call) if call.request.is_streamed else _WholeAnswer(self.desk, call)
        await answer.give(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, exchange_id: str) -> ChatCall:
        """Return the call if it may be made; raises ApiError."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        key = await self.desk.identify(headers)
        raw = await read_body(headers, receive)
        request = read_chat_request(raw)
        version = await self.desk.routes.find_version(key.project_id, request.model)
        if version is None:
            policy = self.desk.routes.snapshot.policies.get(key.project_id)
            raise unknown_model(request.model, known=list(policy.names()) if policy else [])
        trajectory_id = scope.get("claw.trajectory_id") or headers.get(TRAJECTORY_HEADER, "")
        if trajectory_id:
            await self.desk.trajectories.admit(trajectory_id, project_id=key.project_id)
        return ChatCall(
            exchange_id=exchange_id,
            key=key,
            version=version,
            request=request,
            raw_request=raw,
            headers=headers,
            trajectory_id=trajectory_id,
        )


class _Answer:
    """What both ways of answering share."""

    def __init__(self, desk: Desk, call: ChatCall) -> None:
        self.desk = desk
        self.call = call

    def ask(self) -> AbstractAsyncContextManager[Reply]:
        """Return the engine's answer, as a block."""
        call = self.call
        return self.desk.engines.ask(
            ENGINE_PATH,
            call.engine_body,
            find_engines=lambda: self.desk.routes.snapshot.find_engines(call.version),
            is_streamed=call.request.is_streamed,
        )

    async def refuse(self, scope: Scope, receive: Receive, send: Send, error: ApiError) -> None:
        """Answer with an error, kept in the pool like any other answer."""
        self.call.fail(ERROR, error.message)
        self.call.response = orjson.dumps(error.body())
        error.headers.update(self.call.answer_headers())
        await self.keep()
        await render_error(error)(scope, receive, send)

    async def keep(self) -> None:
        """Return when the call is durable."""
        await self.desk.writer.commit(self.call.record())

    async def keep_cancelled(self) -> None:
        """The server shuts down with the call unfinished: keep what has come."""
        self.call.fail(ABORTED, _SHUTDOWN)
        await asyncio.shield(self.keep())


class _WholeAnswer(_Answer):
    """One JSON object."""

    async def give(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with Departure(receive):
                answer = await self._fetch()
        except ClientGoneError:
            self.call.fail(ABORTED, _CLIENT_GONE)
            return await self.keep()
        except asyncio.CancelledError:
            await self.keep_cancelled()
            raise
        except EngineRefusedError as refusal:
            self.call.engine = refusal.engine
            return await self.refuse(scope, receive, send, read_refusal(refusal.status, refusal.body))
        except (EngineUnavailableError, EngineBrokenError) as error:
            return await self.refuse(scope, receive, send, unavailable(f"The model cannot answer now: {error}"))
        self.call.response = answer
        await self.keep()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers + _raw(self.call)})
        return await send({"type": "http.response.body", "body": answer})

    async def _fetch(self) -> bytes:
        async with self.ask() as reply:
            self.call.engine = reply.engine
            self.call.first_token_at = datetime.now(UTC)
            try:
                answer: dict[str, Any] = orjson.loads(reply.first)
                self.call.capture.take_whole(answer)
            except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
                raise EngineBrokenError(f"the engine's answer makes no sense: {error}") from error
            return orjson.dumps(answer)


class _StreamedAnswer(_Answer):
    """Server-sent events. Nothing that ends the answer leaves before the call is durable."""

    def __init__(self, desk: Desk, call: ChatCall) -> None:
        super().__init__(desk, call)
        self._has_started = False
        self._held = bytearray()

    async def give(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with Departure(receive):
                async with aclosing(self._events()) as events:
                    async for data in events:
                        await self._send(send, data)
        except ClientGoneError:
            self.call.fail(ABORTED, _CLIENT_GONE)
            return await self.keep()
        except asyncio.CancelledError:
            await self.keep_cancelled()
            raise
        except EngineRefusedError as refusal:
            self.call.engine = refusal.engine
            return await self.refuse(scope, receive, send, read_refusal(refusal.status, refusal.body))
        except EngineUnavailableError as error:
            return await self.refuse(scope, receive, send, unavailable(f"The model cannot answer now: {error}"))
        except EngineBrokenError as error:
            if not self._has_started:
                return await self.refuse(scope, receive, send, unavailable(f"The model cannot answer now: {error}"))
            self.call.fail(ERROR, str(error))
            self._held = bytearray(event(orjson.dumps(unavailable(str(error), code="engine_broken").body())))
        await self.keep()
        return await self._send(send, bytes(self._held), is_last=True)

    async def _events(self) -> AsyncGenerator[bytes]:
        """Yield what may leave at once; the answer's end gathers in `_held`. Raises EngineBrokenError."""
        reader = EventReader()
        async with self.ask() as reply:
            self.call.engine = reply.engine
            self.call.first_token_at = datetime.now(UTC)
            async for data in reply.chunks():
                ready, fault = self._take_all(reader, data)
                if ready:
                    yield ready
                if fault is not None:
                    raise fault
        if not self.call.capture.is_finished:
            raise EngineBrokenError("the engine's answer ended too early")

    def _take_all(self, reader: EventReader, data: bytes) -> tuple[bytes, EngineBrokenError | None]:
        """Record what one read brought; return what may leave, up to the first fault."""
        ready: list[bytes] = []
        try:
            ready.extend(self._take(payload) for payload in reader.feed(data))
        except EngineBrokenError as error:
            return b"".join(ready), error
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, LineTooLongError) as error:
            return b"".join(ready), EngineBrokenError(f"the engine's answer makes no sense: {error}")
        return b"".join(ready), None

    def _take(self, payload: bytes) -> bytes:
        """Record one event; return what of it may leave at once."""
        if payload == DONE:
            self._held += event(DONE)
            return b""
        chunk: dict[str, Any] = orjson.loads(payload)
        if chunk.get("error"):
            raise EngineBrokenError(_error_words(chunk["error"]))
        capture = self.call.capture
        if not capture.take_chunk(chunk):
            return b""
        out = event(orjson.dumps(chunk))
        if capture.is_finished:
            self._held += out
            return b""
        return out

    async def _send(self, send: Send, data: bytes, *, is_last: bool = False) -> None:
        if not self._has_started:
            self._has_started = True
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
            headers += [(b"x-accel-buffering", b"no"), *_raw(self.call)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data, "more_body": not is_last})


def _raw(call: ChatCall) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in call.answer_headers().items()]


def _error_words(error: object) -> str:
    return f"the engine gave up: {error.get('message') if isinstance(error, dict) else error}"
