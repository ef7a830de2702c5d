"""OpenClaw on each of its three APIs, and its daemon with two sessions at once."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.clients.configs import OPENCLAW_APIS, write_openclaw, write_openclaw_daemon
from tests.clients.conftest import MODEL, ReadPool
from tests.clients.engine import TURNS
from tests.clients.gateway import GatewayProcess, find_free_port
from tests.clients.installing import install_node, install_npm
from tests.clients.pool import check_conversation
from tests.clients.running import Place
from worker.host import health

PACKAGE = "openclaw@2026.9.6"
NOWHERE = "http://127.0.0.1:9/"
TOKEN = "of-its-own-daemon"
START_S = 180

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]


@pytest.fixture
def openclaw() -> Path:
    """The program."""
    install_node()
    return install_npm("openclaw", PACKAGE) / "openclaw"


def make_place(folder: Path, *, config: str) -> Place:
    """Return a home with this configuration."""
    env = {"OPENCLAW_TELEMETRY_ENDPOINT": NOWHERE, "OPENCLAW_GATEWAY_TOKEN": TOKEN}
    place = Place.make(folder, env=env, path=str(install_node()))
    (place.home / ".openclaw").mkdir()
    (place.home / ".openclaw" / "openclaw.json").write_text(config)
    return place


@pytest.mark.parametrize("api", OPENCLAW_APIS)
def test_a_session_is_one_chain(
    gateway: GatewayProcess, pool: ReadPool, openclaw: Path, tmp_path: Path, api: str
) -> None:
    config = write_openclaw(url=gateway.url, key=gateway.secret, model=MODEL, api=api)
    place = make_place(tmp_path, config=config)

    for turn in TURNS:
        printed = place.run([openclaw, "agent", "--local", "--session-id", "otters", "-m", turn])
        assert "Answer number" in printed

    (session,) = pool()
    check_conversation(session)
    assert session.row.session_key == "otters"


def test_two_sessions_of_the_daemon_stay_apart(
    gateway: GatewayProcess, pool: ReadPool, openclaw: Path, tmp_path: Path
) -> None:
    port = find_free_port()
    config = json.loads(write_openclaw(url=gateway.url, key=gateway.secret, model=MODEL))
    place = make_place(tmp_path, config=json.dumps(config | write_openclaw_daemon(port=port, token=TOKEN)))

    def converse(name: str) -> None:
        for turn in TURNS[:2]:
            place.run([openclaw, "agent", "--session-key", f"agent:main:{name}", "-m", turn])

    with run_daemon(openclaw, place=place, port=port), ThreadPoolExecutor() as people:
        list(people.map(converse, ["one", "two"]))

    sessions = [session for session in pool() if session.main]
    assert len(sessions) == 2
    for session in sessions:
        check_conversation(session, n_turns=2)


@contextmanager
def run_daemon(openclaw: Path, *, place: Place, port: int) -> Iterator[None]:
    """Run OpenClaw's own gateway while the block runs."""
    with (place.home / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(
            [openclaw, "gateway", "run", "--port", str(port)],
            cwd=place.work,
            env=place.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        health.wait_until_healthy(
            "OpenClaw's daemon",
            lambda: check_answers(f"http://127.0.0.1:{port}/"),
            timeout_s=START_S,
            death=lambda: None if daemon.poll() is None else "it ended at once",
            every_s=0.5,
        )
        yield
    finally:
        daemon.terminate()
        daemon.wait(timeout=60)


def check_answers(url: str) -> str | None:
    """Return why nobody answers there, None when somebody does."""
    try:
        httpx.get(url, timeout=5, trust_env=False)
    except httpx.HTTPError as error:
        return str(error)
    return None
