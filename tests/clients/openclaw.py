"""OpenClaw as the tests run it: installed, at home in a folder of its own, as a command or as its daemon."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.clients.configs import write_openclaw_daemon
from tests.clients.gateway import find_free_port
from tests.clients.installing import OPENCLAW, find_node, require_npm
from tests.clients.running import Place
from worker.host import health

NOWHERE = "http://127.0.0.1:9/"
TOKEN = "of-its-own-daemon"
START_S = 180
ANSWER_S = 120


class OpenClaw:
    """`OpenClaw(folder, config=…)`, then `say` by command, or `with openclaw.run_daemon() as daemon:`."""

    def __init__(self, folder: Path, *, config: str) -> None:
        self.program = require_npm("openclaw", OPENCLAW) / "openclaw"
        env = {"OPENCLAW_TELEMETRY_ENDPOINT": NOWHERE, "OPENCLAW_GATEWAY_TOKEN": TOKEN}
        self.place = Place.make(folder, env=env, path=str(find_node()))
        self._config = config
        self._write(config)

    def say(self, text: str, *, session: str) -> str:
        """Say something in a process of its own and return what it printed."""
        return self.place.run([self.program, "agent", "--local", "--session-id", session, "-m", text])

    @contextmanager
    def run_daemon(self) -> Iterator["Daemon"]:
        """Run OpenClaw's own gateway while the block runs."""
        port = find_free_port()
        self._write(json.dumps(json.loads(self._config) | write_openclaw_daemon(port=port, token=TOKEN)))
        log = self.place.home / "daemon.log"
        with log.open("wb") as output:
            child = subprocess.Popen(
                [self.program, "gateway", "run", "--port", str(port)],
                cwd=self.place.work,
                env=self.place.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=ANSWER_S) as client:
                daemon = Daemon(client)
                health.wait_until_healthy(
                    "OpenClaw's daemon",
                    daemon.find_fault,
                    timeout_s=START_S,
                    death=lambda: None if child.poll() is None else log.read_text(errors="replace")[-3000:],
                    every_s=0.2,
                )
                yield daemon
        finally:
            child.terminate()
            child.wait(timeout=60)

    def _write(self, config: str) -> None:
        folder = self.place.home / ".openclaw"
        folder.mkdir(exist_ok=True)
        (folder / "openclaw.json").write_text(config)


class Daemon:
    """OpenClaw's door for programs: a chat whose `user` is the session."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._client.headers["authorization"] = f"Bearer {TOKEN}"

    def say(self, text: str, *, session: str, model: str) -> str:
        """Say something in a session and return the answer."""
        body = {"model": "openclaw", "user": session, "messages": [{"role": "user", "content": text}]}
        response = self._client.post("/v1/chat/completions", json=body, headers={"x-openclaw-model": model})
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    def find_fault(self) -> str | None:
        """Return why nobody answers there, None when somebody does."""
        try:
            self._client.get("/v1/models").raise_for_status()
        except httpx.HTTPError as error:
            return str(error)
        return None
