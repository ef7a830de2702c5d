"""Real servers and a real supervisord in temporary folders."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from worker.host import programs
from worker.host.startup import Plan, Platform

RunServer = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder with a short name that other users may pass through: pytest's own has neither."""
    folder = Path(tempfile.mkdtemp(prefix="claw-host-")).resolve()
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def run_server() -> Iterator[RunServer]:
    """Start a server in the background; it is killed at the end."""
    children: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], *, user: str | None = None) -> "subprocess.Popen[bytes]":
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, cwd="/", user=user, group=user
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture
def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def said() -> list[str]:
    """What the platform told the person at the terminal."""
    return []


@pytest.fixture
def plan(short_dir: Path, free_port: int) -> Plan:
    """A platform whose web process is a file server and whose other program sleeps."""
    root = short_dir / "root"
    root.mkdir()
    (root / "healthz").write_text("up")
    (root / "Procfile").write_text(
        "web: ${PYTHON} -m http.server ${CLAW_PORT} --bind 127.0.0.1\n"
        "recorder: ${PYTHON} -c 'import time; time.sleep(600)'\n"
    )
    return Plan(
        root=root,
        data_dir=short_dir / "data",
        host="127.0.0.1",
        port=free_port,
        web_url=f"http://127.0.0.1:{free_port}",
        database="claw",
        has_valkey=True,
        engine_port=free_port,
        model="",
        environment={**os.environ, "CLAW_PORT": str(free_port), "PYTHON": sys.executable},
    )


@pytest.fixture
def platform(plan: Plan, said: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(programs, "PROGRAM_START_S", 1)
    platform = Platform(plan, say=said.append)
    yield platform
    platform.stop()
