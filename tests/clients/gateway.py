"""The product's own ASGI application as a process, over the test run's database; ended with the test."""

import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from socket import create_server
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

from django.db import connection

from worker.host import health

ROOT = Path(__file__).parents[2]
START_S = 60
STOP_S = 20


@dataclass(kw_only=True)
class GatewayProcess:
    """`with GatewayProcess(folder=…, secret=…) as gateway:` then `gateway.url`. `secret` is what a client sends."""

    folder: Path
    secret: str
    url: str = field(init=False)
    _child: "subprocess.Popen[bytes]" = field(init=False)

    def __enter__(self) -> Self:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "uvicorn", "clawplatform.asgi:application", "--port", str(port)]
        command += ["--http", "apps.gateway.guard:GuardedProtocol", "--timeout-graceful-shutdown", "5"]
        env = os.environ | {"DATABASE_URL": name_test_database(), "CLAW_DATA_DIR": str(self.folder)}
        with self.log.open("wb") as log:
            self._child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            health.wait_until_healthy(
                "the gateway",
                lambda: health.check_http(f"{self.url}/healthz"),
                timeout_s=START_S,
                death=self._death,
                every_s=0.05,
            )
        except BaseException:
            self._child.kill()
            self._child.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.terminate()
        try:
            self._child.wait(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise

    @property
    def log(self) -> Path:
        return self.folder / "gateway.log"

    @property
    def v1(self) -> str:
        """The base URL as most clients want it."""
        return f"{self.url}/v1"

    def _death(self) -> str | None:
        return None if self._child.poll() is None else self.log.read_text(errors="replace")[-3000:]


def name_test_database() -> str:
    """Return the address of the database that the test itself is connected to."""
    place = connection.settings_dict
    query = urlencode({"host": place["HOST"]} | ({"port": place["PORT"]} if place["PORT"] else {}))
    user = place["USER"] + (f":{place['PASSWORD']}" if place["PASSWORD"] else "")
    return f"postgresql://{user}@/{place['NAME']}?{query}"


def find_free_port() -> int:
    with closing(create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])
