"""Lets calls through to engines: counts those in flight, and has the rest wait in a fair line.

Fair: projects take turns, and within a project the first come is the first served. A version that no engine has (or
whose engines are full, resting or restarting) holds up only those who want it. Knows no HTTP.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import structlog
from django.conf import settings

from apps.gateway.engine_marks import EngineMarks
from apps.gateway.placement import choose_engine
from apps.gateway.routes import EngineRoute

log = structlog.get_logger(__name__)

TICK_S = 0.1  # how soon a waiting call hears of new routes and of rests that are over
BUSY_RETRY_AFTER_S = 5


class EngineUnavailableError(Exception):
    """No engine took the request in time. `code` and `retry_after_s` are for the client."""

    code = "engine_unavailable"

    def __init__(self, message: str, *, retry_after_s: int = BUSY_RETRY_AFTER_S, code: str = "") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code or self.code


class EnginesBusyError(EngineUnavailableError):
    """The engines are well but have all they can hold, and so has the line before them or the caller's patience."""

    code = "engines_busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a call needs: the engines that have its version, asked for anew each time."""

    find_engines: Callable[[], list[EngineRoute]]
    session: str = ""
    project_id: str = ""
    version_id: str = ""


@dataclass(eq=False, slots=True)
class _Ticket:
    """A waiting call. The future brings its engine, or None when it had to leave the line."""

    wanted: Wanted
    number: int
    future: asyncio.Future[EngineRoute | None]


_Lane = deque[_Ticket]  # those who want one version


class EngineGate:
    """One process's view: it counts and queues its own calls, and knows nothing of other gateways'."""

    def __init__(self) -> None:
        self.marks = EngineMarks()
        self._n_in_flight: Counter[str] = Counter()
        self._lines: dict[str, dict[str, _Lane]] = {}  # project → version → lane; the first project is the next served
        self._n_tickets = 0
        self._ticker: asyncio.Task[None] | None = None

    @property
    def n_waiting(self) -> int:
        return sum(map(_length, self._lines.values()))

    @property
    def n_in_flight(self) -> int:
        return self._n_in_flight.total()

    def close(self) -> None:
        """Stop looking after those who wait; called when nobody does."""
        if self._ticker is not None:
            self._ticker.cancel()

    def take(self, wanted: Wanted, *, avoid: AbstractSet[str] = frozenset()) -> EngineRoute | None:
        """Return an engine that takes the call now, counted as busy with it, or None. Give it back by `leave`."""
        known = [engine for engine in wanted.find_engines() if engine.id not in avoid and not engine.fault]
        usable = [engine for engine in known if self.marks.is_usable(engine.id)]
        up = [engine for engine in usable if engine.is_up]
        engine = choose_engine(up or usable, loads=self._n_in_flight, session=wanted.session)
        if engine is not None:
            self._n_in_flight[engine.id] += 1
            self.marks.note_sent(engine.id)
        return engine

    def leave(self, engine: EngineRoute) -> None:
        """The call that `take` or `enter` let through is over."""
        self._n_in_flight[engine.id] -= 1
        if not self._n_in_flight[engine.id]:
            del self._n_in_flight[engine.id]
        self.serve_waiting()

    def note_reached(self, engine: EngineRoute) -> None:
        """The engine answers: if calls wait for the end of its rest, they need not any more."""
        if self.marks.note_reached(engine.id):
            self.serve_waiting()

    async def enter(self, wanted: Wanted, *, until: float, is_again: bool = False) -> EngineRoute:
        """Return an engine as `take` does, waiting for one until `until` (time.monotonic()).

        `is_again`: a call that was let through before keeps its place at the front. Raises EnginesBusyError and
        EngineUnavailableError, at once where waiting cannot help.
        """
        if is_again or wanted.version_id not in self._lines.get(wanted.project_id, {}):
            engine = self.take(wanted)
            if engine is not None:
                return engine
        if fault := _common_fault(wanted.find_engines()):
            raise EngineUnavailableError(fault, code="engine_misconfigured")
        ticket = self._join(wanted, is_again=is_again)
        try:
            await asyncio.wait((ticket.future,), timeout=until - time.monotonic())
        except asyncio.CancelledError:
            if ticket.future.done() and (engine := ticket.future.result()) is not None:
                self.leave(engine)
            raise
        finally:
            self._remove(ticket)
        if not ticket.future.done():
            raise self._explain(wanted)
        engine = ticket.future.result()
        if engine is None:
            raise _line_is_full()
        return engine

    def serve_waiting(self) -> None:
        """Let through whoever can be, one of a project after the other."""
        while any(self._serve_one_of(project_id) for project_id in list(self._lines)):
            pass

    def _serve_one_of(self, project_id: str) -> bool:
        lanes = self._lines[project_id]
        for lane in sorted(lanes.values(), key=lambda lane: lane[0].number):
            engine = self.take(lane[0].wanted)
            if engine is not None:
                ticket = lane[0]
                self._remove(ticket)
                ticket.future.set_result(engine)
                if project_id in self._lines:
                    self._lines[project_id] = self._lines.pop(project_id)  # behind the others
                return True
        return False

    def _join(self, wanted: Wanted, *, is_again: bool) -> _Ticket:
        if not is_again:
            self._make_room(wanted.project_id)
        self._n_tickets += 1
        future = asyncio.get_running_loop().create_future()
        ticket = _Ticket(wanted, 0 if is_again else self._n_tickets, future)
        lane = self._lines.setdefault(wanted.project_id, {}).setdefault(wanted.version_id, deque())
        (lane.appendleft if is_again else lane.append)(ticket)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        return ticket

    def _make_room(self, project_id: str) -> None:
        """In a full line the project with the most calls waiting gives one up, the last that came: maybe this one."""
        if self.n_waiting < settings.CLAW.engine_queue:
            return
        longest = max(self._lines, key=lambda other: _length(self._lines[other]), default=project_id)
        log.warning("engines.line_full", project=longest)
        if _length(self._lines.get(project_id, {})) >= _length(self._lines.get(longest, {})):
            raise _line_is_full()
        last = max((lane[-1] for lane in self._lines[longest].values()), key=lambda ticket: ticket.number)
        self._remove(last)
        last.future.set_result(None)

    def _remove(self, ticket: _Ticket) -> None:
        """Take the ticket out of its lane, if it is there still."""
        lanes = self._lines.get(ticket.wanted.project_id, {})
        lane = lanes.get(ticket.wanted.version_id)
        if lane is None or ticket not in lane:
            return
        lane.remove(ticket)
        if not lane:
            del lanes[ticket.wanted.version_id]
        if not lanes:
            del self._lines[ticket.wanted.project_id]

    async def _tick(self) -> None:
        while self._lines:
            await asyncio.sleep(TICK_S)
            self.serve_waiting()

    def _explain(self, wanted: Wanted) -> EngineUnavailableError:
        engines = wanted.find_engines()
        if not engines:
            return EngineUnavailableError("no engine has this version loaded")
        reasons = [reason for engine in engines if (reason := engine.fault or self.marks.reason(engine.id))]
        if len(reasons) == len(engines):
            return EngineUnavailableError(reasons[0])
        return EnginesBusyError("all engines that have this version are busy")


def _length(lanes: dict[str, _Lane]) -> int:
    return sum(map(len, lanes.values()))


def _common_fault(engines: list[EngineRoute]) -> str:
    """Return what a person must mend before any of the engines can answer, "" when one can."""
    return engines[0].fault if engines and all(engine.fault for engine in engines) else ""


def _line_is_full() -> EnginesBusyError:
    return EnginesBusyError("all engines that have this version are busy, and too many calls wait for them already")
