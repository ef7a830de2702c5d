"""Calls to model servers: connection reuse, and retries before the first byte.

An agent that is shown a 429 or a 5xx may rewrite its user's message or give up for a minute; waiting here is kinder.
Knows no dialect: it sends bytes to a path and hands back bytes.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import structlog

from apps.gateway.routes import EngineRoute

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 600.0  # the longest pause before and between bytes
RETRY_FOR_S = 60.0  # an engine that crashed is back, with its adapters, in 20 to 40 s
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0
N_SERVER_FAULTS = 3  # tries that may end in a 500: it may be this request's own fault
_HEADERS = {"Content-Type": "application/json", "Accept": "*/*"}


class EngineRefusedError(Exception):
    """The engine says that the request itself is wrong (a 4xx): `body` is its answer."""

    def __init__(self, status: int, body: bytes, *, engine: EngineRoute) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self.body = body
        self.engine = engine


class EngineUnavailableError(Exception):
    """No engine took the request within the time for retries."""


class EngineBrokenError(Exception):
    """The engine's answer broke off, or is none."""


class _PassingFaultError(Exception):
    """Trying again, or elsewhere, may help."""

    def __init__(self, message: str, *, is_server_fault: bool = False) -> None:
        super().__init__(message)
        self.is_server_fault = is_server_fault


@dataclass(frozen=True)
class Reply:
    """An answer that has begun: its first bytes are here. Without streaming they are all."""

    engine: EngineRoute
    first: bytes
    response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come; raises EngineBrokenError when the connection breaks."""
        yield self.first
        try:
            async for data in self.response.content.iter_any():
                yield data
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineBrokenError(f"the engine's answer broke off: {_words(error)}") from error


class Engines:
    """The client side of all engines, one connection pool."""

    def __init__(self) -> None:
        self._n_in_flight: Counter[str] = Counter()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def ask(
        self, path: str, body: bytes, *, find_engines: Callable[[], list[EngineRoute]], is_streamed: bool
    ) -> AsyncIterator[Reply]:
        """Send the request to the least busy engine that `find_engines` names now, and hand back what has begun.

        Leaving the block early ends the call on the engine too. Raises EngineRefusedError and EngineUnavailableError.
        """
        engine, response, first = await self._ask_until_taken(path, body, find_engines, is_streamed=is_streamed)
        try:
            yield Reply(engine, first, response)
        finally:
            self._n_in_flight[engine.id] -= 1
            response.close() if not response.content.at_eof() else response.release()

    async def _ask_until_taken(
        self, path: str, body: bytes, find_engines: Callable[[], list[EngineRoute]], *, is_streamed: bool
    ) -> tuple[EngineRoute, aiohttp.ClientResponse, bytes]:
        give_up_at = time.monotonic() + RETRY_FOR_S
        pause_s, n_server_faults = FIRST_PAUSE_S, 0
        tried: set[str] = set()
        reason = "no engine has this version loaded"
        while True:
            engine = self._choose(find_engines(), tried)
            if engine is not None:
                tried.add(engine.id)
                try:
                    return engine, *await self._try(engine, path, body, is_streamed=is_streamed)
                except _PassingFaultError as fault:
                    reason = str(fault)
                    n_server_faults += fault.is_server_fault
                    log.warning("engine.fault", engine=engine.base_url, reason=reason)
                if any(other.id not in tried for other in find_engines()):
                    continue
            if n_server_faults >= N_SERVER_FAULTS or time.monotonic() + pause_s > give_up_at:
                raise EngineUnavailableError(reason)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            tried.clear()

    def _choose(self, engines: list[EngineRoute], tried: set[str]) -> EngineRoute | None:
        left = [engine for engine in engines if engine.id not in tried]
        up = [engine for engine in left if engine.is_up]
        return min(up or left, key=lambda engine: self._n_in_flight[engine.id], default=None)

    async def _try(
        self, engine: EngineRoute, path: str, body: bytes, *, is_streamed: bool
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        self._n_in_flight[engine.id] += 1
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._session.post(engine.base_url + path, data=body, headers=_HEADERS)
            if response.status != 200:
                await self._raise_for_status(engine, response)
            first = await (response.content.readany() if is_streamed else response.read())
            if not first:
                raise _PassingFaultError("the engine's answer is empty")
        except BaseException as error:
            self._n_in_flight[engine.id] -= 1
            if response is not None:
                response.close()
            if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
                raise _PassingFaultError(_words(error)) from error
            raise
        return response, first

    async def _raise_for_status(self, engine: EngineRoute, response: aiohttp.ClientResponse) -> None:
        status = response.status
        body = await response.read()
        # 404: the engine has lost the adapter (a restart); it is put back by the reconciling task.
        if status in {404, 408, 425, 429} or status >= 500:
            text = body[:300].decode(errors="replace")
            raise _PassingFaultError(f"the engine answered {status}: {text}", is_server_fault=status == 500)
        raise EngineRefusedError(status, body, engine=engine)


def _words(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "the engine did not answer in time"
    return f"{type(error).__name__}: {error}".strip(": ")
