"""A small world of real processes to do harm to: Postgres, Valkey, an engine, two gateways and a recorder.

They run as in production (the Procfile's command lines, servers that sync to the disk, one data folder) and each can be
killed and started again at any moment. Knows no faults and counts nothing.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper

from apps.accounts.models import ApiKey, Project
from apps.core.contracts.exchange import SPOOL_FOLDER, SPOOL_SUFFIX
from apps.trajectories.models import Exchange
from tests.factories.accounts import ApiKeyFactory, ProjectFactory
from tests.factories.registry import AliasFactory, EngineFactory, VersionFactory
from worker.host import health, postgres, valkey
from worker.parent import end_with_parent

ROOT = Path(__file__).parents[2]
DATABASE = "claw"
MODEL = "otter"
START_S = 180  # of a process, on a busy machine
QUIET_S = 240  # ten thousand calls are spooled in a minute, and then to be folded
TOKEN_PAUSE_S = 0.002
N_GATEWAYS = 2


def wait_until(is_true: Callable[[], Any], *, what: str, timeout_s: float) -> float:
    """Return the seconds that it took to become true; fail after `timeout_s`."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() < start + timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start


@dataclass
class Program:
    """One process as a supervisor has it. Start it from the main thread: it ends with the thread that started it."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    check: health.Check
    user: str | None = None
    child: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command,
                cwd="/" if self.user else ROOT,
                env=self.env,
                user=self.user,
                group=self.user,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent(signal.SIGKILL),  # noqa: PLW1509 - one system call, loaded before
            )

    def wait_until_healthy(self) -> None:
        health.wait_until_healthy(self.name, self.check, timeout_s=START_S, death=self._death, every_s=0.02)

    def restart(self) -> None:
        self.start()
        self.wait_until_healthy()

    def kill(self) -> None:
        """Kill -9, the children too: Postgres' own would outlive it by a moment and keep its memory.

        It is stopped first, so that it has no more children meanwhile.
        """
        if self.child is None:
            return
        family: list[psutil.Process] = []
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGSTOP)
            family = [psutil.Process(self.child.pid), *self.children()]
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.child.wait()
        psutil.wait_procs(family, timeout=10)

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.child.pid).children(recursive=True) if self.child else []
        return []

    def _death(self) -> str | None:
        if self.child is None or self.child.poll() is None:
            return None
        return f"{self.name} ended at once:\n{self.log.read_text(errors='replace')[-3000:]}"


class World:
    """`with World(logs=folder) as world:`, then `world.gateways[0].kill()`. The logs outlive it."""

    def __init__(self, *, logs: Path) -> None:
        self.logs = logs
        self.folder = Path(tempfile.mkdtemp(prefix="claw-chaos-")).resolve()
        self.folder.chmod(0o711)  # Postgres' own user has to pass
        self.data_dir = self.folder / "data"
        self.spool_dir = self.data_dir / SPOOL_FOLDER
        self.socket_dir = self.folder / "socket"
        valkey_socket = self.folder / "valkey.sock"
        self.redis_url = f"unix://{valkey_socket}"
        self.env = {
            **os.environ,
            "DATABASE_URL": f"postgresql://{postgres.SUPERUSER}@/{DATABASE}?host={self.socket_dir}",
            "REDIS_URL": self.redis_url,
            "CLAW_DATA_DIR": str(self.data_dir),
            "CLAW_SECRET_KEY": settings.SECRET_KEY,  # a person who logs in here is known there
        }
        self.postgres = self._make_postgres()
        self.valkey = self._make_valkey(valkey_socket)
        self.engine_url, self.engine = self._make_engine()
        self.urls, self.gateways = self._make_gateways()
        self.recorder = self._program("recorder", [sys.executable, "manage.py", "record"], check=lambda: None)
        self.project: Project

    def __enter__(self) -> Self:
        try:
            for program in (self.postgres, self.valkey, self.engine):
                program.start()
            self.postgres.wait_until_healthy()
            postgres.ensure_database(DATABASE, socket_dir=self.socket_dir)
            with self.orm():
                self._furnish()
            for program in (*self.gateways, self.recorder):
                program.start()
            for program in self.programs():
                program.wait_until_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        for program in reversed(self.programs()):
            program.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def programs(self) -> list[Program]:
        return [self.postgres, self.valkey, self.engine, *self.gateways, self.recorder]

    @contextmanager
    def orm(self) -> Iterator[None]:
        """Point Django's ORM, in this thread, at the world's database."""
        before = connections["default"]
        place = {"NAME": DATABASE, "USER": postgres.SUPERUSER, "HOST": str(self.socket_dir), "PORT": "", "PASSWORD": ""}
        connections["default"] = DatabaseWrapper({**before.settings_dict, **place, "OPTIONS": {}}, "default")
        try:
            yield
        finally:
            connections["default"].close()
            connections["default"] = before

    def make_key(self, secret: str, **limits: int) -> ApiKey:
        """Return the key of a new agent."""
        return ApiKeyFactory.create(agent__project=self.project, secret=secret, **limits)

    def mend(self) -> None:
        """Start whatever is not running, as a supervisor does."""
        down = [program for program in self.programs() if program.child is None or program.child.poll() is not None]
        for program in down:
            program.start()
        for program in self.programs():  # a Postgres that restarts itself is not down
            program.wait_until_healthy()

    def ask(self, name: str) -> list[Any]:
        """Return one of the things that each gateway's /readyz says."""
        return [httpx.get(f"{url}/readyz", timeout=10, trust_env=False).json()[name] for url in self.urls]

    def count_lost(self) -> int:
        """Return how many calls the gateways say they could not keep."""
        return sum(self.ask("lost_exchanges"))

    def waiting_files(self) -> list[Path]:
        """Return the spool's files that are not in Postgres yet."""
        return list(self.spool_dir.glob(f"*{SPOOL_SUFFIX}"))

    def wait_until_quiet(self) -> float:
        """Return the seconds until nothing is left to replay or to fold."""
        connections["default"].close()  # it may be older than the server
        n_rows, seen_at = -1, 0.0

        def is_quiet() -> bool:
            nonlocal n_rows, seen_at
            n_now = Exchange.objects.count()
            is_busy = bool(self.waiting_files()) or Exchange.objects.unfolded().exists()
            if n_now != n_rows or is_busy:
                n_rows, seen_at = n_now, time.monotonic()
            return time.monotonic() > seen_at + 0.4  # calls that nobody waits for are written too

        return wait_until(is_quiet, what="the spool is empty and all is folded", timeout_s=QUIET_S)

    def kill_a_backend(self, chance: random.Random) -> None:
        """Kill -9 one of Postgres' own processes; the server then restarts itself."""
        victims = [child for child in self.postgres.children() if "claw" in _name_of(child)]
        if victims:
            with suppress(psutil.NoSuchProcess):
                chance.choice(victims).kill()

    def cut_gateways_off(self) -> None:
        """End the gateways' connections to Postgres, which itself is well: a proxy's restart, a network's hiccup."""
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'claw-gateway'"
            )

    def _furnish(self) -> None:
        """Make what a gateway finds in the database: a policy with its base weights live, an engine."""
        call_command("migrate", verbosity=0)
        self.project = ProjectFactory.create(name="Shop", slug="shop")
        version = VersionFactory.create(policy__project=self.project, policy__slug=MODEL)
        AliasFactory.create(version=version)
        EngineFactory.create(base_url=self.engine_url)

    def _program(self, name: str, command: list[str], *, check: health.Check, user: str | None = None) -> Program:
        return Program(name, command, env=self.env, log=self.logs / f"{name}.log", check=check, user=user)

    def _make_postgres(self) -> Program:
        pgdata = self.folder / "pgdata"
        postgres.prepare(pgdata, socket_dir=self.socket_dir, is_durable=False)  # only its making is not synced
        return self._program(
            "postgres",
            postgres.command(pgdata, socket_dir=self.socket_dir),
            check=lambda: health.check_postgres_socket(self.socket_dir, user=postgres.SUPERUSER),
            user=postgres.server_user(),
        )

    def _make_valkey(self, valkey_socket: Path) -> Program:
        folder = self.folder / "valkey"
        valkey.prepare(folder, socket=valkey_socket)
        return self._program(
            "valkey",
            valkey.command(folder, socket=valkey_socket),
            check=lambda: health.check_redis(self.redis_url),
        )

    def _make_engine(self) -> tuple[str, Program]:
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.fakes.word_engine", "--port", str(port), "--pause", str(TOKEN_PAUSE_S)]
        return url, self._program("engine", command, check=lambda: health.check_http(f"{url}/v1/models"))

    def _make_gateways(self) -> tuple[list[str], list[Program]]:
        ports = [free_port() for _ in range(N_GATEWAYS)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        return urls, [self._make_gateway(port, url) for port, url in zip(ports, urls, strict=True)]

    def _make_gateway(self, port: int, url: str) -> Program:
        command = [sys.executable, "-m", "uvicorn", "clawplatform.asgi:application", "--port", str(port)]
        command += ["--http", "apps.gateway.guard:GuardedProtocol", "--timeout-keep-alive", "75", "--no-access-log"]
        return self._program(f"gateway-{port}", command, check=lambda: health.check_http(f"{url}/healthz"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _name_of(process: psutil.Process) -> str:
    """Return its command line, "" when it has ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
