"""What the server does with clients that are slow on purpose or by accident: half a request, an answer nobody reads.

Uvicorn waits for both without end, and holds a head of any size. Knows HTTP's frame and no more; a body's own time
limit is in `bodies.py`, where it can be told in the client's dialect. Used by `uvicorn --http` (Procfile).
"""

import asyncio
import re
from asyncio.events import TimerHandle
from collections.abc import Sized

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

log = structlog.get_logger(__name__)

HEAD_S = 20.0
MAX_HEAD_BYTES = 64 * 1024
MOST_AHEAD = 100  # requests of one connection that wait for the answers before theirs; more are not read
STALL_S = 60.0  # so long a client may take nothing of what waits for it
PROBE_EVERY_S = 0.25
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"  # every client has to skip it, however often it comes
_UPGRADE = re.compile(rb"\r\nupgrade:([^\r\n]*)", re.IGNORECASE)
_NO_REQUEST_WORDS = b"What came cannot be taken as a request.\n"
_NO_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_NO_REQUEST_WORDS),
    _NO_REQUEST_WORDS,
)
_TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE_WORDS = b"The request's address and headers are larger than %d KiB together.\n" % (MAX_HEAD_BYTES // 1024)
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_TOO_LARGE_WORDS),
    _TOO_LARGE_WORDS,
)


def hide_upgrade(data: bytes) -> bytes:
    """Return the beginning of a request without its wish for another protocol, unless that is a WebSocket's handshake.

    Java's client asks for HTTP/2 with every first request, and goes on without. The parser would leave out the body of
    such a request, and a handshake that is no GET would be waited for without end.
    """
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    head = data[:end] if end >= 0 else data
    found = _UPGRADE.search(head)
    if found is None or (data.startswith(b"GET ") and found[1].strip().lower() == b"websocket"):
        return data
    return _UPGRADE.sub(rb"\r\nx-upgrade:\1", head) + data[len(head) :]


async def refuse_head(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer, as an ASGI application, a head that came whole and is too large: before anybody asks who sends it."""
    length = b"%d" % len(_TOO_LARGE_WORDS)
    headers = [(b"connection", b"close"), (b"content-length", length), (b"content-type", b"text/plain")]
    await send({"type": "http.response.start", "status": 431, "headers": headers})
    await send({"type": "http.response.body", "body": _TOO_LARGE_WORDS})


def speak_http_1_0(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Return the application for a client that knows no chunks: what has no length ends with the connection.

    Uvicorn sends it chunks all the same, unless it believes that it knows the length: it is told that of each part.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_plainly(message: Message) -> None:
            if message["type"] == "http.response.start":
                names.update(name.lower() for name, _ in message.get("headers", ()))
                cycle.chunked_encoding = None if b"content-length" in names else False
            elif b"content-length" not in names:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        names: set[bytes] = set()
        await app(scope, receive, send_plainly)

    return answer


class BoundedFlow(FlowControl):
    """Uvicorn reads on after each answer, however many requests wait: a client that asks ahead faster than it is
    answered would fill the memory with them."""

    def __init__(self, transport: asyncio.Transport, *, waiting: Sized) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        if len(self._waiting) <= MOST_AHEAD:
            super().resume_reading()


class GuardedProtocol(HttpToolsProtocol):
    """One connection with its clocks: for the head that is coming in, for bytes that do not go out, for a client of
    whom nobody knows whether it is there. What comes before, between and after bodies has a measure.

    Uvicorn pauses whoever sends while too much waits to go out, so a client that does not read costs its buffers only
    (64 KiB here, the sockets', the engine's) until the clock ends the call, which is then kept as aborted.
    """

    _head_clock: TimerHandle | None = None
    _stall_clock: TimerHandle | None = None
    _probe_clock: TimerHandle | None = None
    _n_head_bytes = 0  # since the last that were known for a body's
    _is_in_head = True
    _is_in_body = False
    _answered: RequestResponseCycle | None = None  # `cycle` is the last request, of a client that asks ahead

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = BoundedFlow(transport, waiting=self.pipeline)
        self._head_clock = self.loop.call_later(HEAD_S, self._end_head)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clocks()
        super().connection_lost(exc)
        if (cycle := self._find_answered()) is not None:  # uvicorn tells the last request only
            cycle.disconnected = True
            cycle.message_event.set()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Say whether the connection stays for an answer: a client may shut its side once it has asked, and wait.

        One that has closed its socket looks the same at first. So until the answer begins, something is sent now and
        then: the machine of a client that is gone rejects it, and the call ends as with any that hangs up.
        """
        cycle = self.cycle
        is_answer_due = cycle is not None and not cycle.more_body and not cycle.response_started and not self.pipeline
        if not is_answer_due or self.scope["http_version"] != "1.1" or self.scheme != "http":
            return False
        cycle.keep_alive = False
        self._probe()
        return True

    def data_received(self, data: bytes) -> None:
        if not self._is_in_body:
            data = hide_upgrade(data)
        self._n_head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_clock is None:  # most heads come whole and need no clock
            self._head_clock = self.loop.call_later(HEAD_S, self._end_head)
        if self._n_head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_TOO_LARGE, reason="head too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        if self._n_head_bytes > MAX_HEAD_BYTES and self._measure_head() > MAX_HEAD_BYTES:  # else it was a body's start
            log.warning("client.cut_off", client=str(self.client), reason="head too large")
            self.app = refuse_head  # for good: this answer ends the connection
        self._is_in_head, self._is_in_body = False, True
        self._n_head_bytes = 0
        if self._head_clock is not None:
            self._head_clock.cancel()
            self._head_clock = None
        super().on_headers_complete()
        if not self.parser.should_upgrade():
            self.headers = []  # of the fields after a body, which are none of the request's

    def on_body(self, body: bytes) -> None:
        self._n_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_stall()

    def handle_websocket_upgrade(self) -> None:
        if self._find_answered() is None:
            super().handle_websocket_upgrade()
        else:  # the socket would have the connection, and the call before it would never hear that its client left
            self._refuse(_NO_REQUEST, reason="asks for a socket before its answer")

    def send_400_response(self, msg: str) -> None:
        self._refuse(_NO_REQUEST, reason=msg)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_stall()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_clock is not None and not self.transport.is_closing():
            self._stall_clock.cancel()
            self._stall_clock = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._answered = cycle
        if cycle.scope["http_version"] == "1.0":
            app = speak_http_1_0(app, cycle)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _probe(self) -> None:
        self._probe_clock = None
        if not self.cycle.response_started and not self.transport.is_closing():
            self.transport.write(_INTERIM)
            self._probe_clock = self.loop.call_later(PROBE_EVERY_S, self._probe)

    def _watch_stall(self) -> None:
        if self._stall_clock is None:
            self._stall_clock = self.loop.call_later(STALL_S, self._end_stall)

    def _end_head(self) -> None:
        self._head_clock = None
        if self._n_head_bytes:
            self._refuse(_TIMEOUT, reason="head too slow")
        else:
            self.transport.close()

    def _end_stall(self) -> None:
        self._stall_clock = None
        log.warning("client.cut_off", client=str(self.client), reason="does not read its answer")
        self.transport.abort()

    def _refuse(self, answer: bytes, *, reason: str) -> None:
        log.warning("client.cut_off", client=str(self.client), reason=reason)
        answered = self._find_answered()
        if answered is None or not answered.response_started:  # else these words would stand in the midst of others
            self.transport.write(answer)
        self.transport.close()

    def _find_answered(self) -> RequestResponseCycle | None:
        cycle = self._answered
        return None if cycle is None or cycle.response_complete else cycle

    def _stop_clocks(self) -> None:
        for clock in (self._head_clock, self._stall_clock, self._probe_clock):
            if clock is not None:
                clock.cancel()
        self._head_clock = self._stall_clock = self._probe_clock = None
