"""Who may call now: requests and tokens by the minute, calls in flight, tokens by the day.

A call's tokens are not known before its end, so an estimate is taken at its beginning and settled at its end: the
prompt by its bytes, and a modest answer. `max_tokens` is no estimate: agents ask for up to 32,000 and use 300, and by
it three of them would fill any limit. What was underestimated puts the bucket into debt, which later calls wait out,
so on average the limit holds; it is exceeded by the answers in flight at most. An estimate never asks for more than a
full bucket, so no call is too large for ever. A day's tokens are charged to the UTC day on which the call began.

Keys without limits cost nothing here. While Redis is away nobody is refused, and the calls are counted in the log.
Knows no HTTP but the errors' own; the arithmetic is in `limit_scripts.py`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import structlog

from apps.core.counted import count_of
from apps.gateway import limit_scripts
from apps.gateway.errors import ApiError
from apps.gateway.limit_headers import Allowance, LimitState, format_duration
from apps.gateway.script_line import RedisAwayError, Script, ScriptLine
from apps.gateway.terms import ScopeLimits

log = structlog.get_logger(__name__)

LEASE_S = 60.0
RENEW_EVERY_S = 20.0
BYTES_PER_TOKEN = 4
ANSWER_TOKENS = 500
_ADMIT, _SETTLE, _RENEW = map(Script, (limit_scripts.ADMIT, limit_scripts.SETTLE, limit_scripts.RENEW))


def estimate_tokens(n_body_bytes: int, *, max_tokens: object = None, n_choices: int = 1) -> int:
    """Return about how many tokens a call will use, prompt and answer together."""
    longest = max_tokens if isinstance(max_tokens, int) and max_tokens > 0 else ANSWER_TOKENS
    return n_body_bytes // BYTES_PER_TOKEN + n_choices * min(longest, ANSWER_TOKENS)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """What was taken for one call."""

    call_id: str
    scopes: tuple[ScopeLimits, ...]
    n_tokens: int
    day: int

    def keys(self) -> list[str]:
        return _keys(self.scopes)


class Admission:
    """A call that was let in, as a block: leaving it frees the call's place and settles its tokens.

    `count_tokens` is asked then what was really used; where it does not know (None) the estimate stands.
    """

    def __init__(self, limiter: "Limiter", reserved: _Reserved | None = None, state: LimitState | None = None) -> None:
        self._limiter = limiter
        self._reserved = reserved
        self.state = state or LimitState()
        self.count_tokens: Callable[[], int | None] = _do_not_know

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._reserved is not None:
            self._limiter.settle(self._reserved, n_used=self.count_tokens())


def _do_not_know() -> None:
    return None


class Limiter:
    """Asks Redis for each call of a key that has limits."""

    def __init__(self) -> None:
        self._line = ScriptLine(_ADMIT, _SETTLE, _RENEW)
        self._held: dict[str, _Reserved] = {}
        self._n_unlimited = 0
        self._renewal: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._line.start()
        self._renewal = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """Settle what is queued, then let go."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._line.stop()

    async def admit(
        self, scopes: tuple[ScopeLimits, ...], *, call_id: str, n_tokens: int, dialect: str = ""
    ) -> Admission:
        """Return the call's admission; raises ApiError (429) with the headers that the dialect's clients read."""
        if not scopes:
            return Admission(self)
        args: list[str | int] = [call_id, n_tokens, int(1000 * LEASE_S), *_limits(scopes)]
        try:
            answer = await self._line.run(_ADMIT, keys=_keys(scopes), args=args)
        except RedisAwayError as error:
            self._count_unlimited(error)
            return Admission(self)
        self._note_return()
        place, what, wait_ms, day, *numbers = answer.decode().split()
        counts = [int(number) for number in numbers]
        state = LimitState(requests=_allowance(counts[:3]), tokens=_allowance(counts[3:]))
        if int(place):
            raise _refusal(scopes[int(place) - 1], what, wait_ms=int(wait_ms), headers=state.headers(dialect))
        reserved = self._held[call_id] = _Reserved(call_id, scopes, n_tokens, day=int(day))
        return Admission(self, reserved, state)

    def settle(self, reserved: _Reserved, *, n_used: int | None) -> None:
        """Free a call's place and charge what it used instead of what was estimated."""
        self._held.pop(reserved.call_id, None)
        n_used = reserved.n_tokens if n_used is None else n_used
        args: list[str | int] = [reserved.call_id, reserved.n_tokens, reserved.day, n_used]
        args += _limits(reserved.scopes)
        self._line.post(_SETTLE, keys=reserved.keys(), args=args)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            for reserved in self._held.values():
                keys = [_flights(scope) for scope in reserved.scopes if scope.max_in_flight]
                if keys:
                    self._line.post(_RENEW, keys=keys, args=[reserved.call_id, int(1000 * LEASE_S)])

    def _count_unlimited(self, error: RedisAwayError) -> None:
        if not self._n_unlimited:
            log.warning("limits.away", reason=str(error))
        self._n_unlimited += 1

    def _note_return(self) -> None:
        if self._n_unlimited:
            log.warning("limits.back", n_calls_without_limits=self._n_unlimited)
            self._n_unlimited = 0


def _keys(scopes: Sequence[ScopeLimits]) -> list[str]:
    return [name for scope in scopes for name in (f"claw:limits:{scope.id}", _flights(scope))]


def _flights(scope: ScopeLimits) -> str:
    return f"claw:limits:{scope.id}:flights"


def _limits(scopes: Sequence[ScopeLimits]) -> list[int]:
    return [
        limit or 0
        for scope in scopes
        for limit in (scope.requests_per_minute, scope.tokens_per_minute, scope.max_in_flight, scope.tokens_per_day)
    ]


def _allowance(numbers: Sequence[int]) -> Allowance | None:
    limit, left, full_in_ms = numbers
    return Allowance(limit=limit, left=left, full_in_ms=full_in_ms) if limit else None


def _refusal(scope: ScopeLimits, what: str, *, wait_ms: int, headers: dict[str, str]) -> ApiError:
    words = {
        "requests": f"{count_of(scope.requests_per_minute or 0, 'request')} per minute",
        "tokens": f"{count_of(scope.tokens_per_minute or 0, 'token')} per minute",
        "in_flight": f"{count_of(scope.max_in_flight or 0, 'call')} in flight at one moment",
        "day": f"{count_of(scope.tokens_per_day or 0, 'token')} per day",
    }
    headers = {"retry-after": str(max(1, -(-wait_ms // 1000))), **headers}
    if what == "day":
        message = (
            f"You exceeded the quota of this {scope.kind}: {words[what]} (UTC). It is renewed at midnight UTC; an "
            "owner of the team can raise it."
        )
        return ApiError(message, status=429, code="insufficient_quota", kind="insufficient_quota", headers=headers)
    message = f"Rate limit reached for this {scope.kind}: {words[what]}. Try again in {format_duration(wait_ms)}."
    headers["retry-after-ms"] = str(wait_ms)
    kind = "tokens" if what == "tokens" else "requests"
    return ApiError(message, status=429, code="rate_limit_exceeded", kind=kind, headers=headers)
