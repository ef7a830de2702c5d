"""A real browser before the real web process, on this test run's Postgres and Valkey; a real Celery worker where a test
asks for it, with a trainer that trains nothing (the process boundary is real)."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connection, connections
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.apps.console.conftest import *  # noqa: F403 (the same roles, line and trajectories)
from worker.parent import end_with_parent

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "test-artifacts"
LEFT_EARLY = "WebSocket is closed before the connection is established"  # a page that was left at once: no fault
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_S = 40

expect.set_options(timeout=20_000)  # two cores, and a whole test run beside the browser


@pytest.fixture(autouse=True)
def quick_passwords() -> None:
    """Hash passwords as the web process does, which checks them."""


@pytest.fixture(autouse=True)
async def closed_connections() -> AsyncIterator[None]:
    """Close what the thread of `sync_to_async` opened, else the test database cannot be emptied."""
    yield
    await sync_to_async(connections.close_all)()


@pytest.fixture
def trainer_python(tmp_path: Path) -> Path:
    """A program that takes the ML Python's arguments and runs the fake trainer."""
    program = tmp_path / "ml-python"
    fake = ROOT / "tests" / "worker" / "tasks" / "fake_trainer.py"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{fake}" "$4"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def environment(tmp_path: Path, trainer_python: Path, transactional_db: None) -> dict[str, str]:
    """What the web process and the worker are told: this test's database, folder, port and trainer."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **os.environ,
        "DATABASE_URL": urlunsplit(parts._replace(path=f"/{connection.settings_dict['NAME']}")),
        "CLAW_DATA_DIR": str(tmp_path / "data"),
        "CLAW_SECRET_KEY": settings.SECRET_KEY,
        "CLAW_HOST": "127.0.0.1",
        "CLAW_PORT": str(port),
        "CLAW_BASE_URL": f"http://127.0.0.1:{port}",
        "CLAW_ML_PYTHON": str(trainer_python),
        "FAKE_TRAINER": "slow",
        "PYTHONWARNINGS": "ignore",
    }


@dataclass(kw_only=True)
class Child:
    """A process of the platform that a test may stop and start again."""

    command: list[str]
    environment: dict[str, str]
    log: Path
    is_ready: Callable[[], bool]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 (no thread of ours holds a lock)
            )
        wait_for(lambda: self.is_ready() or self.process is None or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def wait_for(condition: Callable[[], bool], *, timeout_s: float = START_S) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.1)


@pytest.fixture
def web(environment: dict[str, str], tmp_path: Path) -> Iterator[Child]:
    """The web process: console and gateway, as the Procfile starts it."""
    address = environment["CLAW_BASE_URL"]

    def answers() -> bool:
        try:
            return httpx.get(f"{address}/login").status_code == 200
        except httpx.TransportError:
            return False

    port = environment["CLAW_PORT"]
    command = [sys.executable, "-m", "uvicorn", "clawplatform.asgi:application", "--host", "127.0.0.1", "--port", port]
    child = Child(command=command, environment=environment, log=tmp_path / "web.log", is_ready=answers)
    child.start()
    yield child
    child.stop()


@pytest.fixture
def worker(environment: dict[str, str], tmp_path: Path) -> Iterator[Child]:
    """The Celery worker of the queue `train`."""
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "celery", "-A", "clawplatform.celery", "worker", "-Q", "train", "-P", "solo"]
    command += ["-l", "INFO", "--without-gossip", "--without-mingle"]
    child = Child(command=command, environment=environment, log=log, is_ready=lambda: "ready." in log.read_text())
    child.start()
    yield child
    child.stop()


@dataclass(kw_only=True)
class Window:
    """A page of the console, and what its console complained of."""

    page: Page
    base_url: str
    complaints: list[str] = field(default_factory=list)

    async def log_in(self, email: str, password: str) -> None:
        await self.page.goto(f"{self.base_url}/login")
        await self.page.get_by_label("E-mail").fill(email)
        await self.page.get_by_label("Password").fill(password)
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.wait_for_url(f"{self.base_url}/")

    async def open(self, path: str) -> None:
        """Go to a page and wait until its socket is there."""
        await self.page.goto(self.base_url + path)
        await self.page.locator("#live[data-state=live]").wait_for(timeout=10_000)

    async def shoot(self, name: str, *, full_page: bool = False) -> None:
        """Keep a picture among the test's artefacts."""
        ARTIFACTS.mkdir(exist_ok=True)
        await self.page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=full_page)

    def hear(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and LEFT_EARLY not in message.text:
            self.complaints.append(message.text)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Headless Chromium: the one that the variable CHROMIUM names, else the system's."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.fail("there is no browser: install Chromium, or name one in the variable CHROMIUM")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        await browser.close()


@pytest.fixture
async def window(browser: Browser, web: Child) -> AsyncIterator[Window]:
    """A page whose console must stay silent: a blocked script, style or request is an error there."""
    context = await browser.new_context(viewport={"width": 1360, "height": 860}, color_scheme="light")
    page = await context.new_page()
    window = Window(page=page, base_url=web.environment["CLAW_BASE_URL"])
    page.on("console", window.hear)
    page.on("pageerror", lambda error: window.complaints.append(str(error)))
    yield window
    await context.close()
    assert window.complaints == []
