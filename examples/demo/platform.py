"""Starts the platform as a person would (`manage.py up`), or uses the one that runs; makes a project for the demo."""

import asyncio
import json
import signal
import sys
import time
import urllib.error
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 420
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


def is_ready(base_url: str) -> bool:
    """Say whether a platform with a healthy engine answers at `base_url`."""
    try:
        with urllib.request.urlopen(f"{base_url}/readyz", timeout=3) as answer:  # noqa: S310 (our own address)
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


async def start_platform(base_url: str) -> Process | None:
    """Return the process of `manage.py up` once it is ready, None when one ran already."""
    if is_ready(base_url):
        print(f"using the platform that runs at {base_url}")
        return None
    process = await asyncio.create_subprocess_exec(*_manage("up"), cwd=ROOT, stdin=DEVNULL, start_new_session=True)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await asyncio.to_thread(is_ready, base_url):
        if process.returncode is not None:
            raise PlatformError("`manage.py up` ended; what it said stands above")
        if time.monotonic() > deadline:
            await stop_platform(process)
            raise PlatformError(f"the platform was not ready after {START_TIMEOUT_S} s; see var/logs")
        await asyncio.sleep(1)
    return process


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
