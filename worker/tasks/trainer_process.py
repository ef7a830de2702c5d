"""The trainer as a child process in a group of its own: started, watched, ended. Knows nothing of runs' rows."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import psutil
import structlog

from worker.trainer.command import REPOSITORY, build_command

log = structlog.get_logger(__name__)

SECRETS = ("DATABASE_URL", "REDIS_URL", "CLAW_SECRET_KEY")  # nothing of a trainer's business
KILL_WAIT_S = 10.0


class TrainerMissing(Exception):
    """The ML environment's Python is not there."""


class TrainerProcess:
    """A started trainer. Its process group outlives neither `kill` nor, by the trainer's own watch, this process."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @classmethod
    def start(
        cls,
        run_dir: Path,
        *,
        log_path: Path,
        python: Path,
        n_processes: int,
        hostfile: Path | None = None,
        n_hosts: int = 1,
    ) -> Self:
        """Start one in `run_dir`, on this host or on several of the host file's. Raises TrainerMissing."""
        argv, extra = build_command(
            str(python),
            run_dir,
            n_processes=n_processes,
            master_port=find_free_port(),
            hostfile=str(hostfile) if hostfile is not None and n_hosts > 1 else None,
            n_hosts=n_hosts,
        )
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS} | extra
        try:
            with log_path.open("ab") as output:
                child = subprocess.Popen(
                    argv,
                    env=environment,
                    cwd=REPOSITORY,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise TrainerMissing(f"the trainer cannot be started with {python}: {error.strerror}") from error
        return cls(child)

    @property
    def process_group(self) -> int:
        """The group of the launcher and all ranks."""
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit code once it has ended."""
        return self._child.poll()

    def terminate(self) -> None:
        """Ask the whole group to stop after a checkpoint."""
        signal_group(self.process_group, signal.SIGTERM)

    def kill(self) -> None:
        """End the whole group now, also what a launcher that is gone has left behind."""
        signal_group(self.process_group, signal.SIGKILL)
        self._child.wait(timeout=KILL_WAIT_S)


def signal_group(process_group: int, number: int) -> None:
    """Send a signal to a group that may be gone."""
    try:
        os.killpg(process_group, number)
    except ProcessLookupError:
        return


def kill_orphan(process_group: int, *, run_dir: Path) -> None:
    """End a trainer whose worker is gone, and wait. A number that belongs to someone else by now is left alone."""
    if not find_members(process_group, run_dir=run_dir):
        return
    log.warning("trainer.orphan_killed", process_group=process_group, run_dir=str(run_dir))
    signal_group(process_group, signal.SIGKILL)
    deadline = time.monotonic() + KILL_WAIT_S
    while find_members(process_group, run_dir=run_dir) and time.monotonic() < deadline:
        time.sleep(0.1)


def find_members(process_group: int, *, run_dir: Path) -> list[int]:
    """Return the live processes of the group that work in `run_dir`; their command lines name it."""
    members = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        words = process.info["cmdline"] or []
        if str(run_dir) not in words or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        try:
            if os.getpgid(process.info["pid"]) == process_group:
                members.append(process.info["pid"])
        except ProcessLookupError:
            continue
    return members


def find_free_port() -> int:
    """Return a port that is free now; ranks meet there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
