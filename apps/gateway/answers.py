"""Gives the client its answer, whole or streamed, and holds back its end until the call is durable.

The same for every dialect: the call's voice finds the words.
"""

import asyncio
import time
from datetime import UTC, datetime

import orjson
from starlette.types import Receive, Scope, Send

from apps.core.contracts.exchange import ABORTED, ERROR
from apps.gateway.bodies import ClientGoneError
from apps.gateway.call import ModelCall, read_refusal
from apps.gateway.departure import Departure
from apps.gateway.desk import Desk
from apps.gateway.dialect import Json
from apps.gateway.engines import (
    EngineBrokenError,
    EngineNonsenseError,
    EngineRefusedError,
    EngineUnavailableError,
    Reply,
)
from apps.gateway.errors import ApiError, bad_answer, render_error, unavailable
from apps.gateway.nonsense import NONSENSE, note_nonsense
from apps.gateway.routes import EngineRoute, Snapshot
from apps.gateway.sse import DONE, EventReader, comment

FIRST_SILENCE_S = 30.0  # until then an engine's failure can still be told by an HTTP status
SILENCE_S = 15.0
_CLIENT_GONE = "the client closed the connection"
_SHUTDOWN = "the gateway was stopped"


def find_speakers(call: ModelCall, snapshot: Snapshot) -> list[EngineRoute]:
    """Return the engines that have the call's version.

    A whole model that no engine has any more was replaced while the call waited: then what its model's name means now
    is asked for instead, and stands in the call. Both have the name of the base on engines.
    """
    engines = snapshot.find_engines(call.version)
    if engines:
        return engines
    meant = snapshot.find_version(call.key.project_id, call.request.model, session=call.affinity)
    if meant is None or meant.engine_name != call.version.engine_name:
        return engines
    call.version = meant
    return snapshot.find_engines(meant)


class _Answer:
    """What both ways of answering share."""

    def __init__(self, desk: Desk, call: ModelCall, send: Send) -> None:
        self.desk = desk
        self.call = call
        self.send = send

    async def ask(self) -> Reply:
        """Return the engine's answer, to be left."""
        while True:
            try:
                reply = await self._ask_once()
            except EngineRefusedError as refusal:
                if not self.call.mend(refusal.status, refusal.body):
                    raise
            else:
                self.call.prompt.note_taken()
                return reply

    async def _ask_once(self) -> Reply:
        call = self.call
        return await self.desk.engines.ask(
            call.dialect.engine_path,
            call.engine_body,
            find_engines=lambda: find_speakers(call, self.desk.routes.snapshot),
            is_streamed=call.request.is_streamed,
            session=call.affinity,
            project_id=call.key.project_id,
            version_id=call.version.id,
        )

    async def give(self, scope: Scope, receive: Receive) -> None:
        """Answer the client. Whatever happens on the way, the call is kept as far as it came."""
        try:
            with Departure(receive):
                await self._fetch()
        except ClientGoneError:
            self.call.fail(ABORTED, _CLIENT_GONE)
            return await self.keep()
        except asyncio.CancelledError:
            self.call.fail(ABORTED, _SHUTDOWN)
            await asyncio.shield(self.keep())
            raise
        except EngineRefusedError as refusal:
            self.call.engine = refusal.engine
            error = read_refusal(refusal.status, refusal.body)
        except EngineUnavailableError as fault:
            error = say_unavailable(fault)
        except EngineBrokenError as fault:
            error = say_broken(fault)
        else:
            return await self._finish()
        return await self._refuse(scope, receive, error)

    async def keep(self) -> None:
        """Return when the call is durable."""
        await self.desk.keep(self.call.record(), self.call.key.capture, conversation=self.call.affinity)

    async def _fetch(self) -> None:
        """Fetch the answer and send what may leave before the call is durable."""
        raise NotImplementedError

    async def _finish(self) -> None:
        """Make the call durable and send the rest."""
        raise NotImplementedError

    async def _refuse(self, scope: Scope, receive: Receive, error: ApiError) -> None:
        """Answer with an error, kept in the pool like any other answer."""
        render_body = self.call.dialect.render_error
        self.call.fail(ERROR, error.message)
        error.request_id = self.call.exchange_id
        self.call.response = orjson.dumps(render_body(error))
        error.headers.update(self.call.answer_headers())
        await self.keep()
        await render_error(error, render_body=render_body)(scope, receive, self.send)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the call's own headers as ASGI sends them."""
        return [(name.encode(), value.encode()) for name, value in self.call.answer_headers().items()]


class WholeAnswer(_Answer):
    """One JSON object."""

    async def _fetch(self) -> None:
        with await self.ask() as reply:
            self.call.engine = reply.engine
            self.call.first_token_at = datetime.now(UTC)
            try:
                answer: Json = orjson.loads(reply.first)
                _check_error(answer)  # some providers say so with a 200
                self.call.capture.take_whole(answer)
                self.call.chat_answer = answer
                self.call.response = orjson.dumps(self.call.voice.render_whole(answer))
            except NONSENSE as error:
                self.call.forget_answer()
                raise note_nonsense(error, engine=reply.engine) from error

    async def _finish(self) -> None:
        answer = self.call.response or b""
        await self.keep()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers + self.raw_headers()})
        await self.send({"type": "http.response.body", "body": answer})


class StreamedAnswer(_Answer):
    """Server-sent events. Nothing that ends the answer leaves before the call is durable."""

    def __init__(self, desk: Desk, call: ModelCall, send: Send) -> None:
        super().__init__(desk, call, send)
        self._sending = asyncio.Lock()
        self._has_started = self._is_over = False
        self._sent_at = time.monotonic()
        self._held = bytearray()

    async def breathe(self) -> None:
        """Send a comment if the stream has been silent for long (see `KeepAlive`)."""
        limit = SILENCE_S if self._has_started else FIRST_SILENCE_S
        if time.monotonic() - self._sent_at >= limit and not self._sending.locked():
            await self._write(comment("keep-alive"))

    async def _fetch(self) -> None:
        self.desk.keep_alive.add(self)
        try:
            await self._pass_on()
        except EngineBrokenError as error:
            self._break_off(say_broken(error), error)
        except EngineUnavailableError as error:
            self._break_off(say_unavailable(error), error)
        except EngineRefusedError as error:
            self.call.engine = error.engine
            self._break_off(read_refusal(error.status, error.body), error)
        finally:
            self.desk.keep_alive.discard(self)

    def _break_off(self, error: ApiError, cause: Exception) -> None:
        """End a stream that has begun with an error; one that has not is still free to answer with a status."""
        if not self._has_started:
            self._is_over = True  # no comment may open the stream any more
            raise cause
        self.call.fail(ERROR, error.message)
        error.request_id = self.call.exchange_id
        self._held = bytearray(self.call.voice.render_break(error))

    async def _finish(self) -> None:
        await self.keep()
        await self._write(bytes(self._held), is_last=True)

    async def _pass_on(self) -> None:
        """Send what may leave at once; the answer's end gathers in `_held`. Raises EngineBrokenError."""
        reader = EventReader()
        with await self.ask() as reply:
            self.call.engine = reply.engine
            self.call.first_token_at = datetime.now(UTC)
            if reply.first.lstrip().startswith(b"{"):
                raise await _find_fault(reply)
            async for data in reply.chunks():
                ready, fault = self._take_all(reader, data, engine=reply.engine)
                if ready:
                    await self._write(ready)
                if fault is not None:
                    raise fault
        if not self.call.capture.is_finished:
            raise EngineBrokenError("the engine's answer ended too early")
        self._held += self.call.voice.render_end()

    def _take_all(
        self, reader: EventReader, data: bytes, *, engine: EngineRoute
    ) -> tuple[bytes, EngineBrokenError | None]:
        """Record what one read brought; return what may leave, up to the first fault."""
        ready: list[bytes] = []
        try:
            for payload in reader.feed(data):
                ready.append(self._take(payload))  # noqa: PERF401 (what came before a fault is kept)
        except EngineBrokenError as error:
            return b"".join(ready), error
        except NONSENSE as error:
            return b"".join(ready), note_nonsense(error, engine=engine)
        return b"".join(ready), None

    def _take(self, payload: bytes) -> bytes:
        """Record one event; return what of it may leave at once."""
        if payload == DONE:
            return b""
        chunk: Json = orjson.loads(payload)
        _check_error(chunk)
        capture = self.call.capture
        if not capture.take_chunk(chunk):
            return b""
        out = self.call.voice.render_chunk(chunk)
        if capture.is_finished:
            self._held += out
            return b""
        return out

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        async with self._sending:
            if self._is_over:
                return
            if not self._has_started:
                self._has_started = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                headers += [(b"x-accel-buffering", b"no"), *self.raw_headers()]
                await self.send({"type": "http.response.start", "status": 200, "headers": headers})
            self._is_over = is_last
            self._sent_at = time.monotonic()
            await self.send({"type": "http.response.body", "body": data, "more_body": not is_last})


async def _find_fault(reply: Reply) -> EngineBrokenError:
    """Return what it means that one JSON object came where a stream was asked for; raises EngineBrokenError."""
    try:
        _check_error(orjson.loads(b"".join([data async for data in reply.chunks()])))
        raise LookupError("it came whole, where a stream was asked for")
    except NONSENSE as error:
        return note_nonsense(error, engine=reply.engine)


def _check_error(said: Json) -> None:
    """Raise EngineBrokenError where an engine says, in an answer's or an event's place, that it gave up."""
    if error := said.get("error"):
        raise EngineBrokenError(f"the engine gave up: {error.get('message') if isinstance(error, dict) else error}")


def say_broken(fault: EngineBrokenError) -> ApiError:
    """Return what a client is told when an answer began and came to nothing."""
    if isinstance(fault, EngineNonsenseError):
        return bad_answer(f"The model gave no answer: {fault}.")
    return unavailable(f"The model cannot answer now: {fault}", code="engine_broken")


def say_unavailable(fault: EngineUnavailableError) -> ApiError:
    """Return what a client is told when no engine took its call, and when it may come again."""
    message = f"The model cannot answer now: {fault}"
    return unavailable(message, code=fault.code, retry_after_s=fault.retry_after_s)
