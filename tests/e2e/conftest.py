"""The whole platform as `manage.py up` starts it, on a tiny model in float32 and in a folder of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parents[2]
START_S = 300
STOP_S = 90


@dataclass(frozen=True, kw_only=True)
class RunningPlatform:
    """Where the platform answers, and the secrets of its sample project."""

    base_url: str
    data_dir: Path
    agent_key: str
    manage_key: str
    process: "subprocess.Popen[bytes]"

    def kill(self, *words: str) -> None:
        """Send SIGKILL to the program whose command line holds all these words."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        (victim,) = [child for child in family if set(words) <= set(child.cmdline())]
        victim.kill()

    def call(self, method: str, path: str, **body: Any) -> Any:
        """Call the REST API as the project's manager; the answer must be a success."""
        headers = {"Authorization": f"Bearer {self.manage_key}"}
        answer = httpx.request(method, f"{self.base_url}/api/v1/{path}", json=body or None, headers=headers, timeout=30)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()


@pytest.fixture(scope="package")
def tiny_model() -> Iterator[Path]:
    """A random two-layer model, made by the ML environment."""
    python = Path(settings.CLAW.ml_python)
    if not python.exists():
        pytest.fail(f"there is no ML environment at {python}: run `make setup`")
    with tempfile.TemporaryDirectory(prefix="claw-model-") as folder:
        target = Path(folder) / "tiny"
        command = [str(python), "-m", "worker.engine.models.tiny", str(target)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        yield target


@pytest.fixture(scope="package")
def platform(tiny_model: Path) -> Iterator[RunningPlatform]:
    """Start everything; stop everything. The logs stay in `test-artifacts/e2e`."""
    data_dir = Path(tempfile.mkdtemp(prefix="claw-e2e-")).resolve()
    data_dir.chmod(0o711)  # Postgres runs as a user of its own
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, data_dir, ignore_errors=True)
        stack.callback(keep_logs, data_dir)
        environment = make_environment(data_dir, tiny_model)
        output = stack.enter_context((data_dir / "up.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "manage.py", "up"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(stop, process)
        base_url = f"http://127.0.0.1:{environment['CLAW_PORT']}"
        wait_for(lambda: is_ready(process, base_url, data_dir), timeout_s=START_S, words="the platform is not ready")
        kept = json.loads((data_dir / "credentials.json").read_text())
        keys = {"agent_key": kept["agent_key"], "manage_key": kept["manage_key"]}
        yield RunningPlatform(base_url=base_url, data_dir=data_dir, process=process, **keys)


def keep_logs(data_dir: Path) -> None:
    """Copy what the programs and the trainers said to where it outlives the folder."""
    target = ROOT / "test-artifacts" / "e2e"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for log in (*data_dir.glob("*.log"), *data_dir.glob("logs/*"), *data_dir.glob("runs/*/trainer.log")):
        shutil.copyfile(log, target / f"{log.parent.name}-{log.name}")


def make_environment(data_dir: Path, model: Path) -> dict[str, str]:
    """Return the settings of a platform of its own: nothing of the test run's database, queue or folder."""
    foreign = {"DATABASE_URL", "REDIS_URL", "ENGINE_URLS", "CLAW_BASE_URL"}
    return {name: value for name, value in os.environ.items() if name not in foreign} | {
        "CLAW_DATA_DIR": str(data_dir),
        "CLAW_PORT": str(find_free_port()),
        "CLAW_ENGINE_PORT": str(find_free_port()),
        "CLAW_ENGINE_DTYPE": "float32",
        "CLAW_MODEL": str(model),
        "CLAW_ML_PYTHON": str(settings.CLAW.ml_python),
    }


def find_free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_ready(process: "subprocess.Popen[bytes]", base_url: str, data_dir: Path) -> bool:
    """Say whether a model call would be answered. Fails at once, with what `up` said, when it has ended."""
    if process.poll() is not None:
        pytest.fail(f"`manage.py up` ended:\n{(data_dir / 'up.log').read_text()[-4000:]}")
    try:
        return httpx.get(f"{base_url}/readyz", timeout=5).is_success and "API key" in (data_dir / "up.log").read_text()
    except httpx.HTTPError:
        return False


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ctrl-C, as a person would; it must end by itself."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def wait_for(condition: Callable[[], bool], *, timeout_s: float, words: str) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{words} after {timeout_s:.0f} s")
        time.sleep(0.25)
