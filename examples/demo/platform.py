"""Starts the platform as a person would (`manage.py up`), or uses the one that runs; makes a project for the demo."""

import asyncio
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worker.host.startup import ENGINE_START_S, PROGRAM_START_S, READY_S, SERVICE_START_S

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 2 * SERVICE_START_S + 2 * PROGRAM_START_S + ENGINE_START_S + READY_S  # what `manage.py up` allows
PROGRESS_EVERY_S = 15
STOP_TIMEOUT_S = 180


class PlatformError(Exception):
    """The platform did not start, or died."""


@dataclass(frozen=True, kw_only=True)
class DemoProject:
    """A fresh project: its base weights know nothing of earlier demos."""

    base_url: str
    slug: str
    manage_key: str
    agent_key: str
    companion_key: str


def _manage(*args: str) -> list[str]:
    return [sys.executable, str(ROOT / "manage.py"), *args]


def find_missing(base_url: str) -> list[str]:
    """Return which parts of the platform at `base_url` do not work yet, by `/readyz`; [] when it is ready."""
    try:
        with urllib.request.urlopen(f"{base_url}/readyz", timeout=3):  # noqa: S310 (our own address)
            return []
    except urllib.error.HTTPError as answer:
        return _read_missing(answer.read())
    except OSError:
        return ["web process"]


def _read_missing(body: bytes) -> list[str]:
    try:
        parts = json.loads(body)
    except ValueError:
        parts = None
    missing = [name for name, works in parts.items() if works is False] if isinstance(parts, dict) else []
    return missing or ["web process"]


async def start_platform(base_url: str, *, say: Callable[[str], None]) -> Process | None:
    """Return the process of `manage.py up` once it is ready, None when one ran already. Raises PlatformError."""
    if not find_missing(base_url):
        say(f"using the platform that runs at {base_url}")
        return None
    process = await asyncio.create_subprocess_exec(*_manage("up"), cwd=ROOT, stdin=DEVNULL, start_new_session=True)
    try:
        await wait_until_ready(base_url, process, say=say)
    except (PlatformError, asyncio.CancelledError):
        await stop_platform(process)
        raise
    return process


async def wait_until_ready(base_url: str, process: Process, *, say: Callable[[str], None]) -> None:
    """Wait for `/readyz`, and say now and then for what. Raises PlatformError when the process ends, or in the end."""
    started = said_at = time.monotonic()
    while missing := await asyncio.to_thread(find_missing, base_url):
        now = time.monotonic()
        if process.returncode is not None:
            raise PlatformError("`manage.py up` ended; what it said stands above")
        if now - started > START_TIMEOUT_S:
            raise PlatformError(f"not ready after {START_TIMEOUT_S} s, for want of: {', '.join(missing)}; see var/logs")
        if now - said_at >= PROGRESS_EVERY_S:
            said_at = now
            say(f"    … {now - started:.0f} s, still waiting for: {', '.join(missing)}")
        await asyncio.sleep(1)


async def stop_platform(process: Process | None) -> None:
    """Stop what `start_platform` started."""
    if process is None or process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)


async def create_demo_project(base_url: str) -> DemoProject:
    """Make a project of its own, with one agent that learns and one that just keeps calling."""
    name = time.strftime("Demo %Y-%m-%d %H:%M:%S")
    process = await asyncio.create_subprocess_exec(
        *_manage("create_project", name, "--agent", "Weather agent", "--agent", "Companion"), cwd=ROOT, stdout=PIPE
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise PlatformError("`manage.py create_project` failed; what it said stands above")
    made = json.loads(output)
    return DemoProject(
        base_url=base_url,
        slug=made["project"],
        manage_key=made["manage_key"],
        agent_key=made["agent_keys"]["weather-agent"],
        companion_key=made["agent_keys"]["companion"],
    )
