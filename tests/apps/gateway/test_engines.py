"""Calls to real (fake) engines: connections, sessions, faults, limits and providers."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import orjson
import pytest
from aiohttp import web
from pytest_django.fixtures import Settings

from apps.gateway.engine_gate import EnginesBusyError
from apps.gateway.engines import (
    N_SERVER_FAULTS,
    EngineNonsenseError,
    EngineRefusedError,
    Engines,
    EngineUnavailableError,
)
from apps.gateway.placement import choose_engine
from apps.gateway.routes import EngineRoute
from apps.registry.models import EngineKind
from tests.apps.gateway.conftest import wait_until
from tests.fakes.engine import FakeEngine

PATH = "/v1/chat/completions"
BODY = orjson.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "logprobs": True})
STREAMED = orjson.dumps({**orjson.loads(BODY), "stream": True})


@pytest.fixture
async def engines() -> AsyncIterator[Engines]:
    engines = Engines()
    yield engines
    engines.close()


@pytest.fixture
def fakes() -> Iterator[list[FakeEngine]]:
    with ExitStack() as stack:
        yield [stack.enter_context(FakeEngine()) for _ in range(3)]


@pytest.fixture
def patience(settings: Settings) -> None:
    """Wait for a second at most."""
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 1.0})


def route(fake: FakeEngine, *, limit: int | None = None) -> EngineRoute:
    return EngineRoute(id=f"engn_{fake.port}", base_url=fake.url, base_model="tiny", is_up=True, max_in_flight=limit)


def provider(base_url: str, *, credential: str = "sk-teacher") -> EngineRoute:
    return EngineRoute(
        id="engn_p", base_url=base_url, base_model="", is_up=True, kind=EngineKind.OPENAI, credential=credential
    )


async def call(engines: Engines, *routes: EngineRoute, session: str = "", body: bytes = BODY, project: str = "") -> str:
    """Ask once, read to the end, and return the id of the engine that answered."""
    asking = engines.ask(
        PATH, body, find_engines=lambda: list(routes), is_streamed=body is STREAMED, session=session, project_id=project
    )
    with await asking as reply:
        assert b"".join([data async for data in reply.chunks()])
        return reply.engine.id


async def call_later(engines: Engines, *routes: EngineRoute, session: str) -> str:
    """Ask once, a moment from now."""
    await asyncio.sleep(0.05)
    return await call(engines, *routes, session=session)


def find_home(routes: list[EngineRoute], session: str) -> EngineRoute | None:
    """Where the session's calls go while nothing is wrong."""
    return choose_engine(routes, loads={}, session=f"/{session}")


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_calls_one_after_the_other_share_a_connection(
    engines: Engines, fakes: list[FakeEngine], body: bytes
) -> None:
    for _ in range(10):
        await call(engines, route(fakes[0]), body=body)
    assert len(fakes[0].calls) == 10
    assert len({call.peer_port for call in fakes[0].calls}) == 1


async def test_calls_at_once_open_no_more_connections_than_they_need(engines: Engines, fakes: list[FakeEngine]) -> None:
    fakes[0].script.first_pause_s = 0.05
    for _ in range(5):
        await asyncio.gather(*(call(engines, route(fakes[0])) for _ in range(8)))
    assert len(fakes[0].calls) == 40
    assert len({call.peer_port for call in fakes[0].calls}) <= 8


async def test_a_session_stays_on_its_engine_and_sessions_are_spread(engines: Engines, fakes: list[FakeEngine]) -> None:
    routes = [route(fake) for fake in fakes]
    homes = {
        session: {await call(engines, *routes, session=session) for _ in range(3)} for session in map(str, range(30))
    }
    assert all(len(home) == 1 for home in homes.values())
    assert len(Counter(home for (home,) in homes.values())) == 3


async def test_equal_sessions_of_two_projects_are_not_one(engines: Engines, fakes: list[FakeEngine]) -> None:
    routes = [route(fake) for fake in fakes]
    homes = {await call(engines, *routes, session="main", project=f"proj_{number}") for number in range(20)}
    assert len(homes) == 3


async def test_a_fault_sends_the_call_to_the_other_engine_at_once(engines: Engines, fakes: list[FakeEngine]) -> None:
    routes = [route(fake) for fake in fakes[:2]]
    home = await call(engines, *routes, session="s")
    sick, well = sorted(fakes[:2], key=lambda fake: route(fake).id != home)
    sick.script.failures = [503, "drop", 500]
    async with asyncio.timeout(5):
        for _ in range(3):
            assert await call(engines, *routes, session="s") == route(well).id
    assert await call(engines, *routes, session="s") == home  # it answered, so it was not left alone


async def test_an_engine_that_is_gone_is_avoided_and_found_again(engines: Engines, patience: None) -> None:
    with FakeEngine() as other:
        with FakeEngine() as gone:
            routes = [route(gone), route(other)]
            session = next(s for s in map(str, range(50)) if find_home(routes, s) == routes[0])
            assert await call(engines, *routes, session=session) == routes[0].id
        for _ in range(2):  # the first meets a kept connection that ends, the second a closed door
            assert await call(engines, *routes, session=session) == routes[1].id
        assert engines.gate.marks.reason(routes[0].id)

        back = FakeEngine()
        back.port = gone.port
        with back:
            answers = [await call_later(engines, *routes, session=session) for _ in range(20)]
        assert answers[-1] == routes[0].id
        assert engines.gate.marks.reason(routes[0].id) == ""


async def test_an_engine_that_is_not_there_is_told_in_plain_words(engines: Engines, settings: Settings) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"engine_wait_s": 0.2})
    with FakeEngine() as engine:
        gone = route(engine)
    with pytest.raises(EngineUnavailableError) as caught:
        await call(engines, gone)
    assert str(caught.value) == "the engine cannot be reached: it is starting, or it is down"
    assert caught.value.retry_after_s > 0


async def test_calls_wait_for_an_only_engine_that_restarts_and_one_finds_out(engines: Engines) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    engine = FakeEngine()
    engine.port, engine.url = port, f"http://127.0.0.1:{port}"
    calls = [asyncio.create_task(call(engines, route(engine))) for _ in range(20)]
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in calls)
    with engine:
        async with asyncio.timeout(10):
            await asyncio.gather(*calls)
        assert len(engine.calls) == 20


async def test_an_engine_gets_no_more_at_once_than_it_takes(engines: Engines, fakes: list[FakeEngine]) -> None:
    fakes[0].script.first_pause_s = 0.05
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, engines.gate.n_in_flight)
            await asyncio.sleep(0.005)

    watcher = asyncio.create_task(watch())
    await asyncio.gather(*(call(engines, route(fakes[0], limit=3)) for _ in range(12)))
    watcher.cancel()
    assert most == 3
    assert len(fakes[0].calls) == 12
    assert (engines.gate.n_in_flight, engines.gate.n_waiting) == (0, 0)


async def test_a_call_that_waits_in_vain_is_told_so(engines: Engines, fakes: list[FakeEngine], patience: None) -> None:
    fakes[0].script.first_pause_s = 30
    busy = asyncio.create_task(call(engines, route(fakes[0], limit=1)))
    await asyncio.sleep(0.1)
    with pytest.raises(EnginesBusyError):
        await call(engines, route(fakes[0], limit=1))
    busy.cancel()
    await asyncio.gather(busy, return_exceptions=True)
    assert engines.gate.n_in_flight == 0


async def test_leaving_early_ends_the_call_on_the_engine(engines: Engines, fakes: list[FakeEngine]) -> None:
    fakes[0].script.pieces, fakes[0].script.pause_s = ["x"] * 200, 0.02
    find = [route(fakes[0])]
    with await engines.ask(PATH, STREAMED, find_engines=lambda: find, is_streamed=True) as reply:
        assert reply.first
    await asyncio.to_thread(wait_until, lambda: fakes[0].calls[0].is_cancelled)
    assert engines.gate.n_in_flight == 0


async def test_a_provider_gets_its_credential_and_the_body_as_it_is(engines: Engines, fakes: list[FakeEngine]) -> None:
    await call(engines, provider(f"{fakes[0].url}/v1"))
    await call(engines, provider(f"{fakes[0].url}/v1", credential=""))
    await call(engines, route(fakes[0]))
    sent = [asked.headers.get("Authorization") for asked in fakes[0].calls]
    assert sent == ["Bearer sk-teacher", None, None]
    assert fakes[0].calls[0].body == orjson.loads(BODY)


def test_a_credential_does_not_show_in_what_is_logged() -> None:
    assert "sk-teacher" not in repr(provider("http://teacher/v1"))


async def test_a_name_that_leads_to_this_machine_is_called_for_those_only_who_sit_at_it(
    engines: Engines, fakes: list[FakeEngine], settings: Settings
) -> None:
    teacher = provider(f"http://localhost:{fakes[0].port}/v1")
    await call(engines, teacher)
    settings.CLAW = settings.CLAW.model_copy(update={"allowed_hosts": "claw.example.com", "engine_wait_s": 0.1})
    others = Engines()  # has no connection open and no name looked up
    try:
        with pytest.raises(EngineUnavailableError):
            await call(others, teacher)
        settings.CLAW = settings.CLAW.model_copy(update={"provider_hosts": ("localhost",), "engine_wait_s": 10.0})
        await call(others, teacher)
    finally:
        others.close()
    assert len(fakes[0].calls) == 2


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_a_provider_that_refuses_our_credential_is_not_the_clients_fault(
    engines: Engines, fakes: list[FakeEngine], status: int
) -> None:
    fakes[0].script.failures = [status]
    with pytest.raises(EngineUnavailableError, match="credential") as caught:
        await call(engines, provider(f"{fakes[0].url}/v1"))
    assert caught.value.code == "engine_misconfigured"
    assert "overloaded" not in str(caught.value)  # its own words may quote the credential


@pytest.mark.parametrize("status", [401, 402, 403])
async def test_an_engine_that_lets_us_not_in_is_not_the_clients_fault(
    engines: Engines, fakes: list[FakeEngine], status: int
) -> None:
    """Told of a 401, agents take their own key for a wrong one, and some do not come back for a minute."""
    fakes[0].script.failures = [status]
    with pytest.raises(EngineUnavailableError, match="an operator") as caught:
        await call(engines, route(fakes[0]))
    assert caught.value.code == "engine_misconfigured"


async def test_a_model_that_a_provider_does_not_have_is_refused_at_once(
    engines: Engines, fakes: list[FakeEngine]
) -> None:
    fakes[0].script.failures = [404]
    with pytest.raises(EngineRefusedError) as caught:
        await call(engines, provider(f"{fakes[0].url}/v1"))
    assert caught.value.status == 404


@pytest.fixture
async def odd_server() -> AsyncIterator[tuple[str, list[str]]]:
    """A server that redirects, packs what it says, says nothing, or is overloaded for long, by the path; returns its
    address and what was asked.
    """
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path.startswith("/moved"):
            return web.Response(status=307, headers={"Location": "/elsewhere"})
        if request.path.startswith("/packed"):
            return web.Response(body=b"{}", headers={"Content-Encoding": "gzip"})
        if request.path.startswith("/empty"):
            return web.Response()
        return web.Response(status=429, headers={"Retry-After": "77"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


async def test_a_redirect_is_not_followed(engines: Engines, odd_server: tuple[str, list[str]]) -> None:
    url, asked = odd_server
    with pytest.raises(EngineNonsenseError, match="307"):
        await call(engines, provider(f"{url}/moved"))
    assert asked == ["/moved/chat/completions"]


@pytest.mark.parametrize("body", [BODY, STREAMED])
async def test_what_would_come_again_is_not_asked_for_again(
    engines: Engines, odd_server: tuple[str, list[str]], body: bytes
) -> None:
    url, asked = odd_server
    with pytest.raises(EngineNonsenseError, match="compressed"):
        await call(engines, provider(f"{url}/packed"), body=body)
    assert len(asked) == 1
    with pytest.raises(EngineUnavailableError, match="empty"):
        await call(engines, provider(f"{url}/empty"), body=body)
    assert len(asked) == 1 + N_SERVER_FAULTS


async def test_a_provider_that_wants_more_time_than_there_is_is_not_asked_again(
    engines: Engines, odd_server: tuple[str, list[str]]
) -> None:
    url, asked = odd_server
    with pytest.raises(EngineUnavailableError, match="429") as caught:
        await call(engines, provider(f"{url}/busy"))
    assert caught.value.retry_after_s == 77
    assert len(asked) == 1
