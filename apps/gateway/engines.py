"""Calls to model servers: connection reuse, and retries before the first byte.

An agent that is shown a 429 or a 5xx may rewrite its user's message or give up for a minute; waiting here is kinder.
Knows no dialect: it sends bytes to a path and hands back bytes.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver
from django.conf import settings

from apps.gateway.engine_gate import BUSY_RETRY_AFTER_S, EngineGate, EngineUnavailableError, Wanted
from apps.gateway.provider_resolver import ProviderResolver
from apps.gateway.routes import EngineRoute

__all__ = ["EngineBrokenError", "EngineRefusedError", "EngineUnavailableError", "Engines", "Reply"]

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 600.0  # the longest pause before and between bytes
KEPT_ALIVE_S = 4.0  # vLLM's server closes an idle connection after 5 s: a call must not meet it doing so
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0
N_SERVER_FAULTS = 3  # tries that may end in a 500: it may be this request's own fault
LONGEST_RETRY_AFTER_S = 3600
_HEADERS = {"Content-Type": "application/json", "Accept": "*/*"}
_NO_PATH = re.compile(rb'"(?:message|detail)" ?: ?"Not Found"')
_UNREACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


class EngineRefusedError(Exception):
    """The engine says that the request itself is wrong (a 4xx): `body` is its answer."""

    def __init__(self, status: int, body: bytes, *, engine: EngineRoute) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self.body = body
        self.engine = engine


class EngineBrokenError(Exception):
    """The engine's answer broke off, or is none."""


class _PassingFaultError(Exception):
    """Trying again, or elsewhere, may help; not before `retry_after_s` where the engine said so."""

    def __init__(self, message: str, *, is_server_fault: bool = False, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.is_server_fault = is_server_fault
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Reply:
    """An answer that has begun, as a block: its first bytes are here. Without streaming they are all.

    Leaving the block early ends the call on the engine too.
    """

    engine: EngineRoute
    first: bytes
    response: aiohttp.ClientResponse
    gate: EngineGate

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.response.content.at_eof():
            self.response.release()
        else:
            self.response.close()
        self.gate.leave(self.engine)

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
        self.gate = EngineGate()
        self._own = _make_session(None)
        self._providers = _make_session(ProviderResolver())

    async def close(self) -> None:
        self.gate.close()
        await self._own.close()
        await self._providers.close()

    async def ask(
        self,
        path: str,
        body: bytes,
        *,
        find_engines: Callable[[], list[EngineRoute]],
        is_streamed: bool,
        session: str = "",
        project_id: str = "",
        version_id: str = "",
    ) -> Reply:
        """Send the request to one of the engines that `find_engines` names now; return what has begun, a block.

        Calls of one `session` go to the same engine while it can take them, others to the least busy. While none can,
        the call waits in a line in which projects take turns.
        Raises EngineRefusedError and EngineUnavailableError (EnginesBusyError among them).
        """
        session = f"{project_id}/{session}" if session else ""
        wanted = Wanted(find_engines=find_engines, session=session, project_id=project_id, version_id=version_id)
        retries = _Retries(give_up_at=time.monotonic() + settings.CLAW.engine_wait_s)
        tried: set[str] = set()
        engine: EngineRoute | None = await self.gate.enter(wanted, until=retries.give_up_at)
        while True:
            while engine is None:
                await retries.pause()
                tried.clear()
                engine = await self.gate.enter(wanted, until=retries.give_up_at, is_again=True)
            tried.add(engine.id)
            try:
                return await self._try(engine, path, body, is_streamed=is_streamed)
            except _PassingFaultError as fault:
                retries.note(fault, engine=engine)
            engine = self.gate.take(wanted, avoid=tried)

    async def _try(self, engine: EngineRoute, path: str, body: bytes, *, is_streamed: bool) -> Reply:
        """Return what has begun, the engine still counted as busy; whatever is raised, it is not."""
        response: aiohttp.ClientResponse | None = None
        try:
            headers = _HEADERS | ({"Authorization": f"Bearer {engine.credential}"} if engine.credential else {})
            # A redirect is not followed: it could lead a credential, or us, anywhere.
            session = self._providers if engine.is_provider else self._own
            response = await session.post(engine.url(path), data=body, headers=headers, allow_redirects=False)
            self.gate.note_reached(engine)
            if response.status != 200:
                await _raise_for_status(engine, response)
            first = await (response.content.readany() if is_streamed else response.read())
            if not first:
                raise _PassingFaultError("the engine's answer is empty")
        except BaseException as error:
            if response is not None:
                response.close()
            self._note_failure(engine, error)
            self.gate.leave(engine)
            if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
                raise _PassingFaultError(_words(error)) from error
            raise
        return Reply(engine, first, response, self.gate)

    def _note_failure(self, engine: EngineRoute, error: BaseException) -> None:
        if isinstance(error, _UNREACHED):
            log.warning("engine.unreached", engine=engine.base_url, error=repr(error))
            self.gate.marks.note_unreachable(engine.id, reason=_words(error))
        else:
            self.gate.marks.note_unknown(engine.id)


def _make_session(resolver: AbstractResolver | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_ALIVE_S, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=True,
    )


@dataclass
class _Retries:
    """How long, and after which pauses, one call is tried again."""

    give_up_at: float
    pause_s: float = FIRST_PAUSE_S
    n_server_faults: int = 0
    last: _PassingFaultError | None = None

    def note(self, fault: _PassingFaultError, *, engine: EngineRoute) -> None:
        log.warning("engine.fault", engine=engine.base_url, reason=str(fault))
        self.n_server_faults += fault.is_server_fault
        self.last = fault

    async def pause(self) -> None:
        """Wait before all engines are tried again; raises EngineUnavailableError when that is of no use."""
        retry_after_s = self.last.retry_after_s if self.last else 0
        pause_s = max(self.pause_s, retry_after_s)
        if self.n_server_faults >= N_SERVER_FAULTS or time.monotonic() + pause_s > self.give_up_at:
            raise EngineUnavailableError(str(self.last), retry_after_s=retry_after_s or BUSY_RETRY_AFTER_S)
        await asyncio.sleep(pause_s)
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)


async def _raise_for_status(engine: EngineRoute, response: aiohttp.ClientResponse) -> None:
    """Raise what an answer other than 200 means."""
    status = response.status
    body = await response.read()
    text = f"the engine answered {status}: {body[:300].decode(errors='replace')}"
    if engine.is_provider and status in {401, 402, 403}:
        # Not the client's key is wrong but ours, and the provider's words may quote it.
        raise EngineUnavailableError(
            f"the provider refuses this project's credential ({status}): an owner has to renew it",
            code="engine_misconfigured",
        )
    if status < 400:
        raise EngineUnavailableError(f"the engine answered {status}, where only 200 is an answer", code="engine_broken")
    # vLLM's 404: it has lost the adapter (a restart), which the reconciling task puts back; or it lacks the path.
    is_lost = status == 404 and not engine.is_provider and _NO_PATH.search(body) is None
    is_passing = status in {408, 425, 429} or is_lost
    if is_passing or status >= 500:
        retry_after_s = _read_retry_after(response.headers.get("Retry-After", ""))
        raise _PassingFaultError(text, is_server_fault=status == 500, retry_after_s=retry_after_s)
    raise EngineRefusedError(status, body, engine=engine)


def _read_retry_after(value: str) -> int:
    """Return the seconds that the engine wants to be left alone; a date counts as nothing said."""
    return min(int(value), LONGEST_RETRY_AFTER_S) if value.isascii() and value.isdigit() else 0


def _words(error: BaseException) -> str:
    if isinstance(error, _UNREACHED):
        return "the engine cannot be reached: it is starting, or it is down"
    if isinstance(error, TimeoutError):
        return "the engine did not answer in time"
    return f"{type(error).__name__}: {error}".strip(": ")
