"""What the gateway costs: an instant stub engine, called directly, through a bare Starlette pass-through, and through
the gateway with durable capture on. One load generator (wrk), one run, one machine.

    python -m bench.gateway [seconds a cell]

Prints a table and, last, one line `BENCH_GATEWAY {json}`. Needs wrk; starts its own Postgres (fsync on) and Valkey.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

from worker.host import health, postgres, valkey

SECRET = "claw-bench"  # noqa: S105 (of a database that lives for a minute)
STUB, PASS_THROUGH, GATEWAY = 8971, 8972, 8973
PATH = "/v1/chat/completions"
TITLES = "server         stream  KB  in flight    req/s   p50 ms   p99 ms  cpu ms  fail     MB"
LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {secret}"
wrk.body = [==[{body}]==]
done = function(summary, latency, requests)
  io.write(string.format("RESULT %f %f %f %d\\n", summary.requests / (summary.duration / 1e6),
    latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    summary.errors.status + summary.errors.read + summary.errors.timeout + summary.errors.connect))
end
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement. `cpu_ms` is the server's own processor time a request, which a busy machine hardly disturbs."""

    server: str
    is_streamed: bool
    request_kb: int
    in_flight: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    n_errors: int
    rss_mb: float


@contextmanager
def running(*command: str, env: dict[str, str], user: str | None = None) -> Iterator[int]:
    """Run a child for the time of the block."""
    child = subprocess.Popen(command, env=env, user=user, group=user, cwd="/" if user else None, stdout=2)
    try:
        yield child.pid
    finally:
        child.send_signal(signal.SIGINT)
        child.wait(20)


def uvicorn(app: str, port: int) -> list[str]:
    return [sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", "--no-access-log"]


def start_services(folder: Path, stack: ExitStack) -> dict[str, str]:
    """Start Postgres and Valkey; return the environment that names them."""
    sockets, pgdata, redis_socket = folder / "socket", folder / "pgdata", folder / "valkey.sock"
    postgres.prepare(pgdata, socket_dir=sockets)
    valkey.prepare(folder / "valkey", socket=redis_socket)
    env = dict(os.environ)
    stack.enter_context(running(*postgres.command(pgdata, socket_dir=sockets), env=env, user=postgres.server_user()))
    stack.enter_context(running(*valkey.command(folder / "valkey", socket=redis_socket), env=env))
    wait_for("Postgres", lambda: health.check_postgres_socket(sockets, user=postgres.SUPERUSER))
    return env | {
        "DATABASE_URL": f"postgresql://{postgres.SUPERUSER}@/postgres?host={sockets}",
        "REDIS_URL": f"unix://{redis_socket}",
        "CLAW_DATA_DIR": str(folder / "data"),
        "STUB_URL": f"http://127.0.0.1:{STUB}",
    }


def wait_for(name: str, check: health.Check) -> None:
    health.wait_until_healthy(name, check, timeout_s=60, death=lambda: None)


def answers(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (our own address)
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return str(error)


def make_lua(folder: Path, *, is_streamed: bool, request_kb: int) -> Path:
    text = "a word and another " * (request_kb * 1024 // 19)
    body = {"model": "bench", "stream": is_streamed, "messages": [{"role": "user", "content": text}]}
    path = folder / f"{is_streamed}-{request_kb}.lua"
    path.write_text(LUA.replace("{secret}", SECRET).replace("{body}", json.dumps(body)))
    return path


def measure(port: int, lua: Path, *, in_flight: int, seconds: int) -> tuple[float, float, float, int]:
    """Return requests a second, p50 and p99 in milliseconds, and the number of failures."""
    url = f"http://127.0.0.1:{port}{PATH}"
    command = ["wrk", "-t1", f"-c{in_flight}", f"-d{seconds}s", "--timeout", "10s", "-s", str(lua), url]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"RESULT (\S+) (\S+) (\S+) (\d+)", out)
    if found is None:
        raise SystemExit(f"wrk said:\n{out}")
    return float(found[1]), float(found[2]), float(found[3]), int(found[4])


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def run_cells(folder: Path, pids: dict[str, tuple[int, int]], *, seconds: int) -> Iterator[Cell]:
    for is_streamed in (False, True):
        for request_kb in (1, 60):
            lua = make_lua(folder, is_streamed=is_streamed, request_kb=request_kb)
            for in_flight in (1, 32):
                for server, (port, pid) in pids.items():
                    measure(port, lua, in_flight=in_flight, seconds=1)
                    used_s = cpu_seconds(pid)
                    per_s, p50_ms, p99_ms, n_errors = measure(port, lua, in_flight=in_flight, seconds=seconds)
                    used_s = cpu_seconds(pid) - used_s
                    yield Cell(
                        server=server,
                        is_streamed=is_streamed,
                        request_kb=request_kb,
                        in_flight=in_flight,
                        per_s=round(per_s, 1),
                        p50_ms=round(p50_ms, 3),
                        p99_ms=round(p99_ms, 3),
                        cpu_ms=round(1000 * used_s / max(1, per_s * seconds), 3),
                        n_errors=n_errors,
                        rss_mb=round(psutil.Process(pid).memory_info().rss / 2**20, 1),
                    )


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed: apt install wrk")
    folder = Path(tempfile.mkdtemp(prefix="claw-bench-")).resolve()
    folder.chmod(0o711)
    cells: list[Cell] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        env = start_services(folder, stack)
        subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=env, check=True)
        subprocess.run([sys.executable, "-m", "bench.gateway_parts", SECRET], env=env, check=True)
        pids: dict[str, tuple[int, int]] = {}
        for name, app, port in (
            ("stub", "bench.gateway_parts:stub", STUB),
            ("pass-through", "bench.gateway_parts:pass_through", PASS_THROUGH),
            ("gateway", "clawplatform.asgi:application", GATEWAY),
        ):
            pids[name] = port, stack.enter_context(running(*uvicorn(app, port), env=env))
            wait_for(name, partial(answers, f"http://127.0.0.1:{port}/healthz"))
        time.sleep(1)
        print(TITLES)
        for cell in run_cells(folder, pids, seconds=seconds):
            cells.append(cell)
            print(
                f"{cell.server:13}{cell.is_streamed!s:>8}{cell.request_kb:>4}{cell.in_flight:>11}{cell.per_s:>9}"
                f"{cell.p50_ms:>9}{cell.p99_ms:>9}{cell.cpu_ms:>8}{cell.n_errors:>6}{cell.rss_mb:>7}",
                flush=True,
            )
    print(f"BENCH_GATEWAY {json.dumps([asdict(cell) for cell in cells])}")


if __name__ == "__main__":
    main()
