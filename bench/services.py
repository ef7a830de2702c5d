"""What every bench needs around it: children that end with the block, and a Postgres and Valkey of its own."""

import os
import signal
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from worker.host import health, postgres, valkey


@contextmanager
def running(*command: str, env: dict[str, str], log: Path, user: str | None = None) -> Iterator[int]:
    """Run a child for the time of the block, its output in `log`; gives its process id."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command, env=env, user=user, group=user, cwd="/" if user else None, stdout=output, stderr=output
        )
        try:
            yield child.pid
        finally:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def start_services(folder: Path, stack: ExitStack) -> dict[str, str]:
    """Start Postgres and Valkey; return the environment that names them."""
    sockets, pgdata, redis_socket = folder / "socket", folder / "pgdata", folder / "valkey.sock"
    postgres.prepare(pgdata, socket_dir=sockets)
    valkey.prepare(folder / "valkey", socket=redis_socket)
    env = dict(os.environ)
    database, cache = (
        postgres.command(pgdata, socket_dir=sockets),
        valkey.command(folder / "valkey", socket=redis_socket),
    )
    stack.enter_context(running(*database, env=env, log=folder / "postgres.log", user=postgres.server_user()))
    stack.enter_context(running(*cache, env=env, log=folder / "valkey.log"))
    wait_for("Postgres", lambda: health.check_postgres_socket(sockets, user=postgres.SUPERUSER))
    return env | {
        "DATABASE_URL": f"postgresql://{postgres.SUPERUSER}@/postgres?host={sockets}",
        "REDIS_URL": f"unix://{redis_socket}",
        "CLAW_DATA_DIR": str(folder / "data"),
    }


def measure_fsync_ms(folder: Path, *, n: int = 200) -> float:
    """Return the median time in which 8 KB are written and safe on this disk: no commit takes less."""
    data, times_s = os.urandom(8192), list[float]()
    descriptor = os.open(folder / "fsync", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, bytes(n * len(data)), 0)
        os.fsync(descriptor)
        for place in range(n):
            began = time.perf_counter()
            os.pwrite(descriptor, data, place * len(data))
            os.fdatasync(descriptor)
            times_s.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return round(1000 * statistics.median(times_s), 3)


def wait_for(name: str, check: health.Check) -> None:
    """Return when the check says nothing any more."""
    health.wait_until_healthy(name, check, timeout_s=90, death=lambda: None)


def answers(url: str) -> str | None:
    """Say why nothing answers at the address, None when something does."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (our own address)
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return str(error)
