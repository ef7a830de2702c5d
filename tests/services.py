"""Real Postgres and Valkey for one test run, in a temporary folder of its own, so that several runs can go at once.

DATABASE_URL and REDIS_URL, where set, are used as they are. Nothing survives: the servers skip every fsync.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from worker.host import health, postgres, valkey
from worker.parent import end_with_parent

START_S = 30


@dataclass(kw_only=True)
class Services:
    """The servers of this run and the folder they live in."""

    folder: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def start(cls, *, has_servers: bool = True) -> "Services":
        """Start what the environment does not name, and write the addresses into the environment.

        Without servers there is only a data folder: enough to read the settings.
        """
        folder = Path(tempfile.mkdtemp(prefix="claw-tests-")).resolve()
        folder.chmod(0o711)
        services = cls(folder=folder)
        os.environ["CLAW_DATA_DIR"] = str(folder / "data")
        try:
            if has_servers and "DATABASE_URL" not in os.environ:
                os.environ["DATABASE_URL"] = services.start_postgres()
            if has_servers and "REDIS_URL" not in os.environ:
                os.environ["REDIS_URL"] = services.start_valkey()
        except BaseException:
            services.stop()
            raise
        return services

    def start_postgres(self) -> str:
        """Start a Postgres server and return its address."""
        pgdata, socket_dir = self.folder / "pgdata", self.folder / "socket"
        postgres.prepare(pgdata, socket_dir=socket_dir, is_durable=False)
        user = postgres.server_user()
        self._start(
            postgres.command(pgdata, socket_dir=socket_dir, is_durable=False),
            name="postgres",
            user=user,
            death_signal=signal.SIGQUIT,
        )
        health.wait_until_healthy(
            "Postgres",
            lambda: health.check_postgres_socket(socket_dir, user=postgres.SUPERUSER),
            timeout_s=START_S,
            death=self._death_of_last,
            every_s=0.02,
        )
        return f"postgresql://{postgres.SUPERUSER}@/claw?host={socket_dir}"

    def start_valkey(self) -> str:
        """Start a Valkey server and return its address."""
        socket = self.folder / "valkey.sock"
        valkey.prepare(self.folder / "valkey", socket=socket)
        self._start(
            valkey.command(self.folder / "valkey", socket=socket, is_durable=False),
            name="valkey",
            user=None,
            death_signal=signal.SIGKILL,
        )
        url = f"unix://{socket}"
        health.wait_until_healthy(
            "Valkey",
            lambda: health.check_redis(url),
            timeout_s=START_S,
            death=self._death_of_last,
            every_s=0.02,
        )
        return url

    def stop(self) -> None:
        """End the servers at once and remove the folder."""
        for server in self.servers:
            server.send_signal(signal.SIGINT)
        for server in self.servers:
            try:
                server.wait(timeout=10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, command: list[str], *, name: str, user: str | None, death_signal: signal.Signals) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.servers.append(
                subprocess.Popen(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    user=user,
                    group=user,
                    start_new_session=True,  # Ctrl-C is for pytest, which then stops them
                    preexec_fn=end_with_parent(death_signal),  # noqa: PLW1509 - no thread runs yet
                )
            )

    def _death_of_last(self) -> str | None:
        if self.servers[-1].poll() is None:
            return None
        logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self.folder.glob("*.log"))
        return f"a test server ended at once:\n{logs}"
