"""HTTP/1.1 to model servers, as far as model calls need it: one POST on a kept connection, its answer as it comes.

A general client's own work is a third of what a call costs here (decision 21), so this one does no more: no redirects,
no cookies, no proxies, no compression. Parsing is llhttp's, by `httptools`, as on the server's side. Knows no engine,
no retry and no status's meaning.
"""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import cast
from urllib.parse import quote, urlsplit

import httptools

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 600.0  # the longest pause before and between bytes
KEPT_ALIVE_S = 4.0  # vLLM's server closes an idle connection after 5 s: a call must not meet it doing so
MAX_HEAD_BYTES = 64 * 1024
HIGH_WATER = 128 * 1024  # of an answer that is read as it comes, no more waits here
MAX_ANSWER_BYTES = 256 * 1024 * 1024  # thousands of embeddings, or every log-prob of a long answer, take half of it
_PORTS = {"http": 80, "https": 443}
_NO_BODY = frozenset({204, 304})


class WireError(Exception):
    """The connection broke, fell silent, or what came on it is no HTTP."""


class UnreachedError(WireError):
    """There is no connection to the server."""


class UnfitError(WireError):
    """What comes can be no answer, nor would it be the next time.

    It is longer than any is and would fill the memory that all calls share, or in a form that nobody asked for.
    """


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    port: int
    is_tls: bool


class Wires:
    """Kept connections to all servers. `find_places`: the addresses of a host and port; raises OSError."""

    def __init__(self, find_places: Callable[[str, int], Awaitable[list[str]]]) -> None:
        self._find_places = find_places
        self._idle: defaultdict[_Server, list[Wire]] = defaultdict(list)
        self._sweep: asyncio.TimerHandle | None = None

    async def post(
        self, url: str, body: bytes, *, credential: str = "", is_whole: bool, on_head: Callable[[], None]
    ) -> "Wire":
        """Send the body; return when the answer's first bytes are here, with `is_whole` when all of them are.

        `on_head` is called when the server begins to answer. Whoever gets the wire must `leave` it. Raises
        UnreachedError and WireError.
        """
        server, head = _read_url(url)
        wire = self._take(server) or await self._connect(server)
        try:
            await wire.ask(_make_head(head, len(body), credential), body, is_whole=is_whole, on_head=on_head)
        except BaseException:
            wire.close()
            raise
        return wire

    def close(self) -> None:
        """Let go of all connections that are not in use."""
        if self._sweep is not None:
            self._sweep.cancel()
        for kept in self._idle.values():
            for wire in kept:
                wire.close()
        self._idle.clear()

    def keep(self, wire: "Wire", server: _Server) -> None:
        """Take back a connection that may be used again."""
        self._idle[server].append(wire)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_ALIVE_S, self._drop_old)

    def _take(self, server: _Server) -> "Wire | None":
        kept = self._idle.get(server)
        while kept:  # the last used first, so that those which are not needed grow old
            wire = kept.pop()
            if wire.is_usable():
                return wire
            wire.close()
        return None

    def _drop_old(self) -> None:
        self._sweep = None
        for server, kept in list(self._idle.items()):
            usable = [wire for wire in kept if wire.is_usable()]
            for wire in set(kept).difference(usable):
                wire.close()
            if usable:
                self._idle[server] = usable
            else:
                del self._idle[server]
        if self._idle:
            self._sweep = asyncio.get_running_loop().call_later(KEPT_ALIVE_S, self._drop_old)

    async def _connect(self, server: _Server) -> "Wire":
        try:
            places = await self._find_places(server.host, server.port)
        except (OSError, UnicodeError) as error:  # a name that is none is a UnicodeError
            raise UnreachedError(str(error)) from error
        fault = UnreachedError(f"{server.host} leads nowhere")
        for place in places:
            try:
                return await self._connect_to(place, server)
            except OSError as error:  # a time-out is one too
                fault = UnreachedError(f"{type(error).__name__}: {error}".strip(": "))
        raise fault

    async def _connect_to(self, place: str, server: _Server) -> "Wire":
        loop = asyncio.get_running_loop()
        context, name = (_tls_context(), server.host) if server.is_tls else (None, None)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, wire = await loop.create_connection(
                lambda: Wire(self, server), place, server.port, ssl=context, server_hostname=name
            )
        return wire


class Wire(asyncio.Protocol):
    """A connection, and the answer that comes on it now."""

    transport: asyncio.Transport

    def __init__(self, wires: Wires, server: _Server) -> None:
        self._wires = wires
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._clock: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._waiter: asyncio.Future[None] | None = None
        self._on_head: Callable[[], None] | None = None  # there while a request is under way
        self._is_paused = False
        self._begin(is_whole=True)

    def _begin(self, *, is_whole: bool) -> None:
        self.status = 0
        self.retry_after = ""
        self._is_whole = is_whole
        self._is_headed = self._is_over = self._is_kept = self._has_length = self._is_packed = False
        self._n_head_bytes = 0
        self._parts: list[bytes] = []
        self._n_waiting = self._n_body_bytes = 0
        self._fault: WireError | None = None

    # What its user does.

    async def ask(self, head: bytes, body: bytes, *, is_whole: bool, on_head: Callable[[], None]) -> None:
        """Send a request and wait for the answer's first bytes, with `is_whole` for all of them. Raises WireError."""
        self._begin(is_whole=is_whole)
        self._on_head = on_head
        self._heard_at = self._loop.time()
        self.transport.writelines((head, body))
        await self._wait()

    async def read(self) -> bytes:
        """Return what has come since the last time, waiting for something; nothing at the answer's end.

        Raises WireError when it does not come to its end.
        """
        if not self._parts and not self._is_over:
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._n_waiting = 0
        self._resume()
        return data

    async def read_all(self) -> bytes:
        """Return all that is still to come; raises WireError."""
        self._is_whole = True
        if not self._is_over:
            self._resume()
            await self._wait()
        return await self.read()

    def leave(self) -> None:
        """The answer is not wanted any more: keep the connection for the next one if it came to its end, else close."""
        if self._is_over and self._is_kept and not self.transport.is_closing():
            self._on_head = None
            self._resume()
            self._stop_clock()
            self._wires.keep(self, self._server)
        else:
            self.close()

    def is_usable(self) -> bool:
        """Whether another request may be sent."""
        return not self.transport.is_closing() and self._loop.time() - self._heard_at < KEPT_ALIVE_S

    def close(self) -> None:
        """Hang up, at once."""
        self._stop_clock()
        self.transport.abort()

    async def _wait(self) -> None:
        """Return when there is what is waited for; raises WireError when it will not come."""
        if self._fault is None and not self._is_ready():
            if self._clock is None:
                self._clock = self._loop.call_later(SILENCE_S, self._check_silence)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._fault is not None and not self._is_over and (self._is_whole or not self._parts):
            raise self._fault

    def _is_ready(self) -> bool:
        return self._is_over or (self._is_headed and not self._is_whole and bool(self._parts))

    # What the transport does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"the server speaks no HTTP: {error}")
        if not self._is_headed:
            self._n_head_bytes += len(data)
            if self._n_head_bytes > MAX_HEAD_BYTES:
                self._break("the answer's head is too long")
        if self._n_waiting > HIGH_WATER and not self._is_whole and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_over:
            if exc is None and self._is_headed and not self._has_length:  # it ends where the connection does
                self._is_over = True
            else:
                self._fault = self._fault or WireError(f"the connection ended: {exc or 'the server closed it'}")
        self._stop_clock()
        self._wake()

    # What the parser does.

    def on_message_begin(self) -> None:
        if self._on_head is None or self._is_over:
            self._break("the server speaks unasked")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_length = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            self._is_packed = True

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._is_headed = self.status >= 200  # else it is a provisional one
        self._has_length |= self.status in _NO_BODY
        if self._is_headed and self._on_head is not None:
            self._on_head()
        if self._is_packed and self.status == 200:  # what another status says is told by the status
            self._end(UnfitError("it is compressed, which nobody asked for"))

    def on_body(self, body: bytes) -> None:
        if self._is_packed:
            return
        self._parts.append(body)
        self._n_waiting += len(body)
        self._n_body_bytes += len(body)
        if self._n_body_bytes > MAX_ANSWER_BYTES:
            self._end(UnfitError(f"it is longer than {MAX_ANSWER_BYTES // 1024 // 1024} MiB"))

    def on_message_complete(self) -> None:
        if self._is_headed and self._fault is None:
            self._is_over = True
            self._is_kept = self._parser.should_keep_alive()

    # Within.

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (self._fault is not None or self._is_ready()):
            waiter.set_result(None)

    def _resume(self) -> None:
        """Let more come, if too much waited before."""
        if self._is_paused and not self.transport.is_closing():
            self.transport.resume_reading()
            self._heard_at = self._loop.time()
        self._is_paused = False

    def _break(self, reason: str) -> None:
        self._end(WireError(reason))

    def _end(self, fault: WireError) -> None:
        self._fault = self._fault or fault
        self._is_kept = False
        self.close()
        self._wake()

    def _check_silence(self) -> None:
        """One timer for many bytes: it looks how long ago the last ones came."""
        left_s = self._heard_at + SILENCE_S - self._loop.time()
        if left_s > 0 or self._is_paused:  # who is not listened to is not silent
            self._clock = self._loop.call_later(left_s if left_s > 0 else SILENCE_S, self._check_silence)
            return
        self._clock = None
        self._break("the server did not answer in time")

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


@lru_cache(maxsize=1024)
def _read_url(url: str) -> tuple[_Server, bytes]:
    """Return the server and the head of every POST to this address, but for what differs from one to the next.

    Raises UnreachedError for what is no address.
    """
    parts = urlsplit(url)
    try:
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError) as error:
        raise UnreachedError(f"{url} is no address of a server") from error
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\nUser-Agent: claw-platform\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\n"
    )
    return _Server(host, port, is_tls=parts.scheme == "https"), head.encode()


def _make_head(head: bytes, n_bytes: int, credential: str) -> bytes:
    lines = b"%bContent-Length: %d\r\n" % (head, n_bytes)
    if credential:
        lines += b"Authorization: Bearer %b\r\n" % credential.encode()
    return lines + b"\r\n"
