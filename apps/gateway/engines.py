"""Calls to model servers: connection reuse, and retries before the first byte.

An agent that is shown a 429 or a 5xx may rewrite its user's message or give up for a minute; waiting here is kinder.
Knows no dialect: it sends bytes to a path and hands back bytes.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

import structlog
from django.conf import settings

from apps.core.retry_after import read_retry_after_s
from apps.gateway.engine_gate import BUSY_RETRY_AFTER_S, EngineGate, EngineUnavailableError, Wanted
from apps.gateway.engine_places import find_places, find_provider_places
from apps.gateway.engine_wire import UnfitError, UnreachedError, Wire, WireError, Wires
from apps.gateway.routes import EngineRoute

__all__ = [
    "EngineBrokenError",
    "EngineNonsenseError",
    "EngineRefusedError",
    "EngineUnavailableError",
    "Engines",
    "Reply",
]

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 3.0
N_SERVER_FAULTS = 3  # tries that may end in a 500 or in nothing: it may be this request's own fault
_NO_PATH = re.compile(rb'"(?:message|detail)" ?: ?"Not Found"')


class EngineRefusedError(Exception):
    """The engine says that the request itself is wrong (a 4xx): `body` is its answer."""

    def __init__(self, status: int, body: bytes, *, engine: EngineRoute) -> None:
        super().__init__(f"the engine answered {status}")
        self.status = status
        self.body = body
        self.engine = engine


class EngineBrokenError(Exception):
    """The engine's answer broke off, or is none."""


class EngineNonsenseError(EngineBrokenError):
    """The engine's answer is none: it came whole, and nobody can read it."""


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
    wire: Wire
    gate: EngineGate

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.wire.leave()
        self.gate.leave(self.engine)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes as they come; raises EngineBrokenError when the connection breaks, or they do not end."""
        yield self.first
        try:
            while data := await self.wire.read():
                yield data
        except UnfitError as error:
            raise _say_unfit(error) from error
        except WireError as error:
            raise EngineBrokenError(f"the engine's answer broke off: {_words(error)}") from error


class Engines:
    """The client side of all engines."""

    def __init__(self) -> None:
        self.gate = EngineGate()
        self._own = Wires(find_places)
        self._providers = Wires(find_provider_places)

    def close(self) -> None:
        self.gate.close()
        self._own.close()
        self._providers.close()

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
        Raises EngineRefusedError, EngineNonsenseError and EngineUnavailableError (EnginesBusyError among them).
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
        wire: Wire | None = None
        try:
            wires = self._providers if engine.is_provider else self._own
            wire = await wires.post(
                engine.url(path),
                body,
                credential=engine.credential,
                is_whole=not is_streamed,
                on_head=partial(self.gate.note_reached, engine),
            )
            if wire.status != 200:  # nor is a redirect followed: it could lead a credential, or us, anywhere
                _raise_for_status(engine, wire, await wire.read_all())
            first = await wire.read()
            if not first:
                raise _PassingFaultError("the engine's answer is empty", is_server_fault=True)
        except BaseException as error:
            if wire is not None:
                wire.leave()
            self._note_failure(engine, error)
            self.gate.leave(engine)
            if isinstance(error, UnfitError):  # so would be the next one
                raise _say_unfit(error) from error
            if isinstance(error, WireError):
                raise _PassingFaultError(_words(error)) from error
            raise
        return Reply(engine, first, wire, self.gate)

    def _note_failure(self, engine: EngineRoute, error: BaseException) -> None:
        if isinstance(error, UnreachedError):
            log.warning("engine.unreached", engine=engine.base_url, error=repr(error))
            self.gate.marks.note_unreachable(engine.id, reason=_words(error))
        else:
            self.gate.marks.note_unknown(engine.id)


@dataclass
class _Retries:
    """How long, and after which pauses, one call is tried again."""

    give_up_at: float
    pause_s: float = field(default_factory=lambda: FIRST_PAUSE_S)
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


def _raise_for_status(engine: EngineRoute, wire: Wire, body: bytes) -> None:
    """Raise what an answer other than 200 means."""
    status = wire.status
    text = f"the engine answered {status}: {body[:300].decode(errors='replace')}"
    if status in {401, 402, 403}:
        # Not the client's key is wrong but ours, and a provider's words may quote it.
        fault = f"the provider refuses this project's credential ({status}): an owner has to renew it"
        if not engine.is_provider:
            fault = f"the engine lets this platform not in ({status}): an operator has to start it without a key"
        raise EngineUnavailableError(fault, code="engine_misconfigured")
    if status < 400:
        raise EngineNonsenseError(f"the engine answered {status}, where only 200 is an answer")
    # vLLM's 404: it has lost the adapter (a restart), which the reconciling task puts back; or it lacks the path.
    is_lost = status == 404 and not engine.is_provider and _NO_PATH.search(body) is None
    is_passing = status in {408, 425, 429} or is_lost
    if is_passing or status >= 500:
        retry_after_s = read_retry_after_s(wire.retry_after)
        raise _PassingFaultError(text, is_server_fault=status == 500, retry_after_s=retry_after_s)
    raise EngineRefusedError(status, body, engine=engine)


def _say_unfit(error: UnfitError) -> EngineNonsenseError:
    return EngineNonsenseError(f"the engine's answer makes no sense: {error}")


def _words(error: WireError) -> str:
    if isinstance(error, UnreachedError):
        return "the engine cannot be reached: it is starting, or it is down"
    return str(error)
