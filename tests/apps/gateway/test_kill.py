"""kill -9 of a gateway process under load: an answer that a client has to its end is in the pool exactly once."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from django.db import connection

from apps.gateway.replay import replay_once
from apps.gateway.spool import Spool
from apps.trajectories.models import Exchange
from tests.apps.gateway.conftest import chat, wait_until
from tests.fakes.engine import FakeEngine
from tests.fakes.proxy import Proxy

PATH = "/v1/chat/completions"
N_CLIENTS = 8


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class GatewayProcess:
    """The product's own ASGI application in a child process."""

    def __init__(self, *, data_dir: Path, postgres_port: int | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        entry = connection.settings_dict
        host = "127.0.0.1" if postgres_port else quote(entry["HOST"], safe="")
        at = f"127.0.0.1:{postgres_port}" if postgres_port else ""
        self.env = {
            **os.environ,
            "DATABASE_URL": f"postgresql://{entry['USER']}@{at}/{entry['NAME']}?host={host}",
            "CLAW_DATA_DIR": str(data_dir),
        }

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "clawplatform.asgi:application", "--port", str(self.port)]
        self.child = subprocess.Popen(
            [*command, "--log-level", "warning"], env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self.is_up, timeout_s=30)

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz").status_code == 200
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()


class Agent(threading.Thread):
    """Calls without a pause, streamed and not, and notes every answer that it has to the end."""

    def __init__(self, url: str, secret: str) -> None:
        super().__init__()
        self.url = url
        self.headers = {"Authorization": f"Bearer {secret}"}
        self.answered: dict[str, str] = {}  # exchange id → text
        self.must_stop = False

    def run(self) -> None:
        n = 0
        while not self.must_stop:
            n += 1
            try:
                with httpx.Client(timeout=10) as client:
                    self.call(client, is_streamed=n % 3 != 0)
            except httpx.HTTPError:
                time.sleep(0.02)

    def call(self, client: httpx.Client, *, is_streamed: bool) -> None:
        body = chat(stream=is_streamed)
        with client.stream("POST", self.url + PATH, json=body, headers=self.headers) as response:
            exchange_id = response.headers["x-request-id"]
            if not is_streamed:
                self.answered[exchange_id] = json.loads(response.read())["choices"][0]["message"]["content"]
                return
            text = ""
            for line in response.iter_lines():
                if line == "data: [DONE]":  # the client has it all; the connection's end tells it nothing new
                    self.answered[exchange_id] = text
                    return
                if line.startswith("data: "):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""


def call_until_killed(gateway: GatewayProcess, secret: str) -> dict[str, str]:
    """Put the gateway under load, kill it in the middle, return what was answered."""
    agents = [Agent(gateway.url, secret) for _ in range(N_CLIENTS)]
    for agent in agents:
        agent.start()
    wait_until(lambda: sum(len(agent.answered) for agent in agents) > 60, timeout_s=30)
    gateway.kill()
    for agent in agents:
        agent.must_stop = True
    for agent in agents:
        agent.join()
    return {exchange_id: text for agent in agents for exchange_id, text in agent.answered.items()}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("is_postgres_away", [False, True])
def test_no_answered_call_is_lost_or_doubled(
    engine: FakeEngine, secret: str, tmp_path: Path, *, is_postgres_away: bool
) -> None:
    """Killed in the middle of writing to Postgres, and in the middle of writing to the spool."""
    engine.script.pause_s = 0.002
    entry = connection.settings_dict
    proxy = Proxy(Path(entry["HOST"]) / ".s.PGSQL.5432")
    gateway = GatewayProcess(data_dir=tmp_path, postgres_port=proxy.port)
    answered: dict[str, str] = {}
    try:
        for _ in range(2):
            proxy.open()
            gateway.start()
            if is_postgres_away:
                proxy.shut()
            answered |= call_until_killed(gateway, secret)
    finally:
        gateway.kill()
        proxy.close()

    asyncio.run(replay_once(Spool(tmp_path / "spool")))
    assert not list((tmp_path / "spool").glob("*.spool"))
    rows = {row.id: row for row in Exchange.objects.all()}
    assert len(answered) > 100
    assert answered.keys() <= rows.keys()
    for exchange_id, text in answered.items():
        kept = json.loads(bytes(rows[exchange_id].response or b""))
        assert kept["choices"][0]["message"]["content"] == text
        assert rows[exchange_id].is_exact
    assert max(Counter(row.response_id for row in rows.values()).values()) == 1
