"""How the demo waits for the platform: a real process, and a real server that answers `/readyz`."""

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from examples.demo import platform
from examples.demo.platform import PlatformError, find_missing, wait_until_ready
from worker.host.startup import ENGINE_START_S


class Readiness(BaseHTTPRequestHandler):
    """Answers as the gateway does, from the server's list of answers; the last one stays."""

    server: "Server"

    def do_GET(self) -> None:
        status, body = self.server.answers[0] if len(self.server.answers) == 1 else self.server.answers.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Stay silent."""


class Server(ThreadingHTTPServer):
    answers: list[tuple[int, bytes]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


NOT_YET = (503, json.dumps({"status": "not ready", "database": True, "redis": False, "engine": False}).encode())
READY = (200, json.dumps({"status": "ready", "database": True, "redis": True, "engine": True}).encode())


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Readiness) as server:
        server.answers = [READY]
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ignore(_text: str) -> None:
    """Hear nothing."""


async def start_child(code: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code)


@pytest.mark.parametrize(
    ("answer", "missing"),
    [(READY, []), (NOT_YET, ["redis", "engine"]), ((502, b"<html>"), ["web process"]), ((503, b"[]"), ["web process"])],
)
def test_what_is_missing_is_read_from_readyz(server: Server, answer: tuple[int, bytes], missing: list[str]) -> None:
    server.answers = [answer]
    assert find_missing(server.url) == missing


def test_where_nobody_answers_the_web_process_is_missing() -> None:
    with Server(("127.0.0.1", 0), Readiness) as closed:
        url = closed.url
    assert find_missing(url) == ["web process"]


async def test_it_says_for_what_it_waits(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "PROGRESS_EVERY_S", 0.5)
    server.answers = [NOT_YET, NOT_YET, NOT_YET, READY]
    said: list[str] = []
    child = await start_child("import time; time.sleep(60)")
    await wait_until_ready(server.url, child, say=said.append)
    child.kill()
    await child.wait()
    assert said[0].endswith("still waiting for: redis, engine")


async def test_it_does_not_wait_for_a_process_that_has_ended(server: Server) -> None:
    server.answers = [NOT_YET]
    child = await start_child("raise SystemExit(1)")
    await child.wait()
    with pytest.raises(PlatformError, match="ended"):
        await wait_until_ready(server.url, child, say=ignore)


async def test_in_the_end_it_gives_up_and_says_what_was_missing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "START_TIMEOUT_S", 0.1)
    server.answers = [NOT_YET]
    child = await start_child("import time; time.sleep(60)")
    with pytest.raises(PlatformError, match="for want of: redis, engine"):
        await wait_until_ready(server.url, child, say=ignore)
    child.kill()
    await child.wait()


def test_it_waits_no_shorter_than_the_platform_itself() -> None:
    assert platform.START_TIMEOUT_S > ENGINE_START_S
