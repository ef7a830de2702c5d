"""Limits, counted in a real Valkey: what is let in, what is refused and how it is said, and what comes back when."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import redis.asyncio as redis
from django.conf import settings
from pytest_django.fixtures import Settings

from apps.core.ids import new_id
from apps.gateway import limits
from apps.gateway.errors import ApiError
from apps.gateway.limit_headers import Allowance, LimitState, format_duration
from apps.gateway.limits import ANSWER_TOKENS, Admission, Limiter, estimate_tokens
from apps.gateway.terms import ScopeLimits


@pytest.fixture
async def limiter() -> AsyncIterator[Limiter]:
    limiter = Limiter()
    limiter.start()
    yield limiter
    await limiter.stop()


@pytest.fixture
async def valkey() -> AsyncIterator["redis.Redis"]:
    async with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client


def scope(kind: str = "key", **fields: int) -> ScopeLimits:
    """Limits of a thing that nothing was counted for yet."""
    return ScopeLimits(kind=kind, id=new_id("key"), **fields)


async def admit(limiter: Limiter, *scopes: ScopeLimits, n_tokens: int = 0) -> Admission:
    return await limiter.admit(scopes, call_id=new_id("exch"), n_tokens=n_tokens)


async def spend(limiter: Limiter, *scopes: ScopeLimits, estimate: int = 0, n_tokens: int = 0) -> None:
    """Make a whole call."""
    with await admit(limiter, *scopes, n_tokens=estimate) as admission:
        admission.count_tokens = lambda: n_tokens
    await settled(limiter)


async def settled(limiter: Limiter) -> None:
    """Questions are answered in order, so this one comes after all settlements."""
    await admit(limiter, scope(requests_per_minute=1))


async def refused(limiter: Limiter, *scopes: ScopeLimits, n_tokens: int = 0) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await admit(limiter, *scopes, n_tokens=n_tokens)
    assert caught.value.status == 429
    assert int(caught.value.headers["retry-after"]) >= 1
    return caught.value


async def test_a_key_without_limits_costs_nothing() -> None:
    limiter = Limiter()  # not started: it could not ask
    with await admit(limiter) as admission:
        assert admission.state.openai_headers() == {}


async def test_a_full_bucket_gives_its_limit_at_once_and_then_refills(limiter: Limiter) -> None:
    mine = scope(requests_per_minute=30)
    left = [(await admit(limiter, mine)).state.requests for _ in range(30)]
    error = await refused(limiter, mine)

    assert [allowance.left for allowance in left if allowance][:3] == [29, 28, 27]
    assert (error.code, error.kind) == ("rate_limit_exceeded", "requests")
    assert error.message.startswith("Rate limit reached for this key: 30 requests per minute. Try again in ")
    assert 0 < int(error.headers["retry-after-ms"]) <= 2000
    assert error.headers["x-ratelimit-limit-requests"] == "30"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    await asyncio.sleep(2.01)
    await admit(limiter, mine)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"requests_per_minute": 1}, "1 request per minute"),
        ({"tokens_per_minute": 1}, "1 token per minute"),
        ({"max_in_flight": 1}, "1 call in flight at one moment"),
        ({"tokens_per_day": 1}, "1 token per day"),
    ],
)
async def test_one_of_a_thing_is_said_as_one(limiter: Limiter, limit: dict[str, int], words: str) -> None:
    mine = scope("key", **limit)
    await admit(limiter, mine, n_tokens=1)
    assert f"this key: {words}" in (await refused(limiter, mine, n_tokens=1)).message


async def test_gateways_count_together(limiter: Limiter) -> None:
    mine, others = scope(requests_per_minute=50, max_in_flight=1000), [limiter, *(Limiter() for _ in range(2))]
    for other in others[1:]:
        other.start()
    answers = await asyncio.gather(*(admit(other, mine) for _ in range(70) for other in others), return_exceptions=True)
    for other in others[1:]:
        await other.stop()

    assert sum(isinstance(answer, Admission) for answer in answers) == 50


async def test_tokens_are_estimated_and_then_settled(limiter: Limiter) -> None:
    mine = scope(tokens_per_minute=1000)
    with await admit(limiter, mine, n_tokens=600) as first:
        assert (await refused(limiter, mine, n_tokens=600)).kind == "tokens"
        first.count_tokens = lambda: 100
    with await admit(limiter, mine, n_tokens=600) as second:
        assert second.state.tokens is not None
        assert 300 <= second.state.tokens.left <= 310
        second.count_tokens = lambda: 1900  # 1000 more than there were
    await settled(limiter)

    wait_ms = int((await refused(limiter, mine, n_tokens=1)).headers["retry-after-ms"])
    assert 55_000 < wait_ms <= 60_100


async def test_a_call_that_came_to_nothing_gives_all_back(limiter: Limiter) -> None:
    mine = scope(tokens_per_minute=1000, tokens_per_day=1000)
    await spend(limiter, mine, estimate=1000, n_tokens=0)
    with await admit(limiter, mine, n_tokens=1000):
        pass


async def test_an_unknown_use_leaves_the_estimate(limiter: Limiter) -> None:
    mine = scope(tokens_per_minute=1000)
    with await admit(limiter, mine, n_tokens=1000):
        pass
    await settled(limiter)
    await refused(limiter, mine, n_tokens=500)


async def test_no_call_is_too_large_for_ever(limiter: Limiter) -> None:
    with await admit(limiter, scope(tokens_per_minute=10), n_tokens=10**6) as admission:
        assert admission.state.tokens is not None
        assert admission.state.tokens.left == 0


@pytest.mark.parametrize("ending", [None, RuntimeError, asyncio.CancelledError])
async def test_a_place_is_free_again_however_a_call_ends(limiter: Limiter, ending: type[BaseException] | None) -> None:
    mine = scope(max_in_flight=2)
    one = await admit(limiter, mine)
    with contextlib.suppress(RuntimeError, asyncio.CancelledError), await admit(limiter, mine):
        error = await refused(limiter, mine)
        assert "2 calls in flight" in error.message
        if ending is not None:
            raise ending
    with await admit(limiter, mine):
        await refused(limiter, mine)
    with one:
        pass


async def test_what_a_killed_gateway_held_is_free_again_soon(limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_S", 1.0)
    mine = scope(max_in_flight=1)
    await admit(limiter, mine)
    await refused(limiter, mine)
    await asyncio.sleep(1.05)
    await admit(limiter, mine)


async def test_a_long_call_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LEASE_S", 1.0)
    monkeypatch.setattr(limits, "RENEW_EVERY_S", 0.1)
    limiter, mine = Limiter(), scope(max_in_flight=1)
    limiter.start()
    with await admit(limiter, mine):
        await asyncio.sleep(1.3)
        await refused(limiter, mine)
    await limiter.stop()


async def test_a_days_budget_is_a_quota_until_midnight(limiter: Limiter) -> None:
    mine = scope("team", tokens_per_day=1000)
    await spend(limiter, mine, estimate=10, n_tokens=999)
    await spend(limiter, mine, estimate=10, n_tokens=5)

    error = await refused(limiter, mine)

    now = datetime.now(UTC)
    to_midnight_s = 86400 - (now.hour * 3600 + now.minute * 60 + now.second)
    assert (error.code, error.kind) == ("insufficient_quota", "insufficient_quota")
    assert "quota of this team: 1,000 tokens per day" in error.message
    assert abs(int(error.headers["retry-after"]) - to_midnight_s) < 5


async def test_a_new_day_has_a_new_budget(limiter: Limiter, valkey: "redis.Redis") -> None:
    mine = scope(tokens_per_day=10)
    await spend(limiter, mine, n_tokens=10)
    await refused(limiter, mine)
    await valkey.hincrby(f"claw:limits:{mine.id}", "day", -1)

    await spend(limiter, mine, estimate=1, n_tokens=4)

    assert await valkey.hget(f"claw:limits:{mine.id}", "spent") == b"4"


async def test_a_call_over_midnight_is_charged_to_its_first_day(limiter: Limiter, valkey: "redis.Redis") -> None:
    mine = scope(tokens_per_day=100)
    with await admit(limiter, mine, n_tokens=1) as admission:
        await valkey.hincrby(f"claw:limits:{mine.id}", "day", 1)
        admission.count_tokens = lambda: 50
    await settled(limiter)

    assert await valkey.hget(f"claw:limits:{mine.id}", "spent") == b"1"


async def test_a_call_that_one_scope_refuses_is_charged_to_none(limiter: Limiter) -> None:
    key, project, team = scope(requests_per_minute=2), scope("project", max_in_flight=1), scope("team")
    with await admit(limiter, key, project, team):
        error = await refused(limiter, key, project, team)
    await settled(limiter)
    second = await admit(limiter, key, project, team)

    assert "this project" in error.message
    assert second.state.requests is not None
    assert second.state.requests.left == 0


async def test_the_tightest_limit_is_told(limiter: Limiter) -> None:
    key, team = scope(requests_per_minute=100, tokens_per_minute=50_000), scope("team", requests_per_minute=10)
    state = (await admit(limiter, key, team, n_tokens=1000)).state

    assert state.requests is not None
    assert (state.requests.limit, state.requests.left) == (10, 9)
    assert state.tokens is not None
    assert (state.tokens.limit, state.tokens.left) == (50_000, 49_000)


async def test_the_highest_limits_are_told_as_they_are(limiter: Limiter) -> None:
    state = (await admit(limiter, scope(requests_per_minute=10**12, tokens_per_minute=10**12), n_tokens=1)).state

    assert state.openai_headers()["x-ratelimit-limit-tokens"] == "1000000000000"
    assert state.requests is not None
    assert 10**12 - 10 <= state.requests.left <= 10**12


async def test_a_restart_of_valkey_forgets_scripts_and_nothing_breaks(limiter: Limiter, valkey: "redis.Redis") -> None:
    mine = scope(requests_per_minute=2)
    await admit(limiter, mine)
    await valkey.script_flush()
    await valkey.client_kill_filter(_type="normal", skipme=True)
    await admit(limiter, mine)
    await refused(limiter, mine)


@pytest.fixture
async def away(settings: Settings, request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Redis's address has nobody there, or somebody who says nothing."""
    writers: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _reader, writer: writers.append(writer), "127.0.0.1", 0)
    settings.REDIS_URL = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    if request.param == "gone":
        server.close()
    yield
    server.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("away", ["gone", "silent"], indirect=True)
async def test_without_redis_agents_are_served_and_counted(
    away: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.gateway.script_line.ANSWER_S", 0.25)
    limiter, mine = Limiter(), scope(requests_per_minute=1)
    limiter.start()
    began = time.perf_counter()
    for _ in range(20):
        with await admit(limiter, mine):
            pass
    took_s = time.perf_counter() - began
    await limiter.stop()

    assert took_s < 20 * 0.25  # one wait, not twenty
    assert caplog.text.count("limits.away") == 1


async def test_limits_hold_again_when_redis_is_back(
    settings: Settings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.gateway.script_line.PAUSE_S", 0.1)
    limiter, mine = Limiter(), scope(requests_per_minute=1)
    limiter.start()
    await admit(limiter, mine)
    ask: Any = limiter._line._ask

    async def fail(_batch: object) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(limiter._line, "_ask", fail)
    for _ in range(3):
        await admit(limiter, mine)
    monkeypatch.setattr(limiter._line, "_ask", ask)
    await asyncio.sleep(0.11)
    await refused(limiter, mine)
    await limiter.stop()

    assert "limits.back" in caplog.text
    assert "'n_calls_without_limits': 3" in caplog.text


@pytest.mark.parametrize(
    ("n_bytes", "fields", "n_tokens"),
    [
        (4000, {}, 1000 + ANSWER_TOKENS),
        (4000, {"max_tokens": 10}, 1010),
        (4000, {"max_tokens": 32_000}, 1000 + ANSWER_TOKENS),
        (0, {"max_tokens": 10, "n_choices": 3}, 30),
        (0, {"max_tokens": None}, ANSWER_TOKENS),
        (0, {"max_tokens": "x"}, ANSWER_TOKENS),
    ],
)
def test_an_estimate_is_the_prompt_and_a_modest_answer(n_bytes: int, fields: Any, n_tokens: int) -> None:
    assert estimate_tokens(n_bytes, **fields) == n_tokens


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0ms"), (20, "20ms"), (1000, "1s"), (1500, "1.5s"), (60_000, "1m0s"), (90_250, "1m30.25s")],
)
def test_times_are_written_as_openai_does(ms: int, text: str) -> None:
    assert format_duration(ms) == text


def test_hours_are_written_too() -> None:
    assert format_duration(7_384_000) == "2h3m4s"


def test_anthropics_headers_name_a_moment() -> None:
    state = LimitState(requests=Allowance(limit=5, left=4, full_in_ms=12_000))
    headers = state.anthropic_headers()
    reset = datetime.fromisoformat(headers.pop("anthropic-ratelimit-requests-reset"))

    assert headers == {"anthropic-ratelimit-requests-limit": "5", "anthropic-ratelimit-requests-remaining": "4"}
    assert 9 < (reset - datetime.now(UTC)).total_seconds() < 13
