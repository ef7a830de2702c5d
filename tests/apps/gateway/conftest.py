"""A running gateway (real uvicorn, in a thread) in front of a fake engine, over the test run's Postgres and Valkey."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psycopg
import pytest
import uvicorn
import uvloop
from django.db import connection
from pytest_django.fixtures import Settings
from starlette.responses import PlainTextResponse

from apps.accounts.models import ApiKey, Project
from apps.gateway.app import GatewayDoor
from apps.gateway.guard import GuardedProtocol
from apps.registry.models import Engine, Policy, Version
from apps.trajectories.models import Exchange
from tests.factories.registry import AliasFactory, EngineFactory, PolicyFactory, VersionFactory
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import Proxy

Json = dict[str, Any]


class QuickServer(uvicorn.Server):
    """Looks whether it is to end more often than the ten times a second that are enough for a server which lives."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # noqa: ASYNC110 - uvicorn's own flag
            await asyncio.sleep(0.02)


class GatewayServer:
    """Uvicorn with the door, in a thread; everything that is not the gateway's answers `rest`."""

    def __init__(self, *, has_sockets: bool = False) -> None:
        self.door = GatewayDoor(PlainTextResponse("rest"))
        config = uvicorn.Config(
            self.door,
            port=0,
            lifespan="on",
            log_config=None,
            ws="auto" if has_sockets else "none",
            http=GuardedProtocol,
            timeout_graceful_shutdown=3,
        )
        self.server = QuickServer(config)
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop that uvicorn chooses
            runner.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve()

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self.server.started or not self._thread.is_alive())
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


def wait_until(is_true: Callable[[], Any], *, timeout_s: float = 30) -> None:
    """Return when it is true; fail after `timeout_s`."""
    give_up_at = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < give_up_at, "it did not become true in time"
        time.sleep(0.01)


def read_events(response: httpx.Response) -> list[str]:
    """Return the payloads of a finished stream."""
    return [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]


def only_exchange() -> Exchange:
    """Return the one exchange of the pool, waiting for it a little."""
    wait_until(Exchange.objects.exists)
    return Exchange.objects.get()


@pytest.fixture(autouse=True)
def patient_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the gateway give the servers more time than in production: here many things share two cores, and whoever is
    slow must not be taken for dead. Tests of these limits set their own."""
    monkeypatch.setattr("apps.gateway.script_line.ANSWER_S", 5.0)
    monkeypatch.setattr("apps.gateway.trajectory_gate.ANSWER_S", 10.0)
    monkeypatch.setattr("apps.gateway.responses.memory.ANSWER_S", 10.0)
    monkeypatch.setattr("apps.gateway.writer.COMMIT_TIMEOUT_S", 15.0)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def policy(transactional_db: None, project: Project) -> Policy:
    return PolicyFactory.create(project=project, slug="otter")


@pytest.fixture
def version(policy: Policy) -> Version:
    """The base weights, live."""
    version = VersionFactory.create(policy=policy)
    AliasFactory.create(version=version)
    return version


@pytest.fixture
def engine_row(transactional_db: None, engine: FakeEngine) -> Engine:
    return EngineFactory.create(base_url=engine.url)


@pytest.fixture
def spool_dir(settings: Settings, tmp_path: Path) -> Path:
    """A data directory of this test's own; returns its spool folder."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    return tmp_path / "spool"


@pytest.fixture
def world(spool_dir: Path, key: ApiKey, version: Version, engine_row: Engine) -> None:
    """All that a gateway finds in the database: a key, a policy with its base weights live, an engine."""


@pytest.fixture
def postgres(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Postgres as the gateway sees it; the test itself keeps its own connection."""
    entry = connection.settings_dict
    proxy = Proxy(Path(entry["HOST"]) / ".s.PGSQL.5432")

    async def connect_through_proxy() -> psycopg.AsyncConnection[tuple[Any, ...]]:
        return await psycopg.AsyncConnection.connect(
            host="127.0.0.1",
            port=proxy.port,
            dbname=entry["NAME"],
            user=entry["USER"],
            autocommit=True,
            connect_timeout=2,
        )

    for module in ("writer", "replay", "trajectory_gate", "responses.memory"):
        monkeypatch.setattr(f"apps.gateway.{module}.connect", connect_through_proxy)
    yield proxy
    proxy.close()


@pytest.fixture
def gateway(world: None) -> Iterator[GatewayServer]:
    with GatewayServer() as server:
        yield server


@pytest.fixture
def http(gateway: GatewayServer, secret: str) -> Iterator[httpx.Client]:
    """Calls the gateway with the agent's key."""
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


def chat(**fields: Any) -> Json:
    """Return a small chat request."""
    return {"model": "otter", "messages": [{"role": "user", "content": "hello"}], **fields}
