"""Runs programs under supervisord: writes its configuration, starts it, and speaks to it over a Unix socket.

supervisord restarts what dies and keeps a log for each program. Nothing is started by itself: the caller says in which
order. Knows nothing of health beyond whether a process is alive.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xmlrpc.client import Fault, ServerProxy

from supervisor.xmlrpc import Faults, SupervisorTransport

from worker.host.errors import HostError
from worker.host.leftovers import MARK
from worker.host.programs import Program
from worker.host.sockets import socket_folder
from worker.parent import end_with_parent

ANSWER_S = 15
LOG_BYTES = 20_000_000
START_RETRIES = 3  # with pauses of 1, 2 and 3 seconds; then supervisord gives the program up
UP_STATES = frozenset({"STARTING", "RUNNING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramState:
    """A program as supervisord sees it. `pid` is 0 when it is not running."""

    name: str
    state: str  # STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL
    pid: int
    words: str  # why it is not running

    @property
    def is_up(self) -> bool:
        return self.state in UP_STATES


class Supervisor:
    """supervisord for the programs of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.logs = data_dir / "logs"
        self.socket = socket_folder(data_dir) / "supervisor.sock"
        self._config = data_dir / "supervisord.conf"
        self._process: subprocess.Popen[bytes] | None = None
        self._programs: list[Program] = []

    def start(self, programs: list[Program], *, root: Path, environment: dict[str, str]) -> None:
        """Start supervisord with these programs, none of them running yet."""
        self._programs = programs
        self.logs.mkdir(parents=True, exist_ok=True)
        self._config.write_text(render_config(programs, logs=self.logs, socket=self.socket))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(self._config)],
            cwd=root,
            env={**environment, MARK: str(self.data_dir)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we stop the programs in their order
            preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
        )
        self._wait_for_socket()

    def start_program(self, name: str) -> None:
        """Start one program and return at once. Raises HostError when its command cannot be run."""
        try:
            with self._server() as server:
                server.supervisor.startProcess(name, False)
        except Fault as fault:
            if fault.faultCode == Faults.ALREADY_STARTED:
                return
            raise HostError(f"{name} cannot be started: {fault.faultString}\n{self.tail(name)}") from fault

    def states(self) -> dict[str, ProgramState]:
        """Return every program's state."""
        try:
            with self._server() as server:
                found: Any = server.supervisor.getAllProcessInfo()
        except Fault as fault:  # it is on its way out
            raise HostError(f"supervisord is stopping: {fault.faultString}") from fault
        return {
            info["name"]: ProgramState(
                name=info["name"], state=info["statename"], pid=info["pid"], words=_describe_end(info)
            )
            for info in found
        }

    def describe_death(self, name: str) -> str | None:
        """Return None while the program is up, else what became of it, with the end of its log."""
        state = self.states()[name]
        if state.is_up:
            return None
        return f"{name} has stopped ({state.words}). The end of its log:\n{self.tail(name)}"

    def tail(self, name: str, *, n_lines: int = 15) -> str:
        """Return the last lines of a program's log, indented, and where the whole is."""
        path = self.logs / f"{name}.log"
        lines = path.read_text(errors="replace").splitlines()[-n_lines:] if path.exists() else []
        return "\n".join(f"    {line}" for line in [*lines, f"({path})"])

    def is_alive(self) -> bool:
        """Say whether supervisord itself runs."""
        return self._process is not None and self._process.poll() is None

    def list_running(self) -> set[str]:
        """Return the names of the programs that have not stopped."""
        return {name for name, state in self.states().items() if state.is_up or state.state == "STOPPING"}

    def stop(self, *, tell: Callable[[str], None]) -> None:
        """Stop every program, the services last, then supervisord. `tell` is called with each name that has stopped."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._tell_programs_to_stop(tell)
            self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def _tell_programs_to_stop(self, tell: Callable[[str], None]) -> None:
        """Stop those of one priority at once: supervisord by itself stops one after the other, each for its seconds,
        and takes a second more for each that has stopped already.
        """
        ranks = {program.name: program.priority for program in self._programs}
        try:
            for priority in sorted(set(ranks.values()), reverse=True):
                self._stop_together({name for name, own in ranks.items() if own == priority}, tell)
        except (HostError, Fault):
            return  # it stops them itself, more slowly

    def _stop_together(self, names: set[str], tell: Callable[[str], None]) -> None:
        for name, state in self.states().items():
            if state.is_up and name in names:
                with self._server() as server:
                    server.supervisor.stopProcess(name, False)
        left = names
        while left:
            running = left & self.list_running()
            for name in sorted(left - running):
                tell(name)
            left = running
            time.sleep(0.05)  # supervisord itself kills who takes longer than its time

    def _wait_for_socket(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        while True:
            if not self.is_alive():
                raise HostError(f"supervisord ended at once:\n{self.tail('supervisord')}")
            try:
                self.states()
            except HostError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    @contextmanager
    def _server(self) -> Iterator[ServerProxy]:
        transport = SupervisorTransport(None, None, f"unix://{self.socket}")
        try:
            with ServerProxy("http://127.0.0.1", transport=transport) as server:
                yield server
        except (OSError, HTTPException) as error:
            raise HostError(f"supervisord does not answer at {self.socket}: {error}") from error


def _describe_end(info: dict[str, Any]) -> str:
    status = info["exitstatus"]
    if status < 0:
        return "killed by a signal"
    return f"exit status {status}" if status else str(info["spawnerr"] or "it ended by itself")


def render_config(programs: list[Program], *, logs: Path, socket: Path) -> str:
    """Return supervisord's configuration file."""
    sections: dict[str, dict[str, object]] = {
        "unix_http_server": {"file": socket, "chmod": "0700"},
        "rpcinterface:supervisor": {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
        },
        "supervisord": {
            "logfile": logs / "supervisord.log",
            "logfile_maxbytes": LOG_BYTES,
            "logfile_backups": 1,
            "pidfile": logs.parent / "supervisord.pid",
            **({"user": "root"} if os.geteuid() == 0 else {}),
        },
        **{f"program:{program.name}": _program_section(program, logs=logs) for program in programs},
    }
    return "\n".join(_render_section(title, values) for title, values in sections.items())


def _program_section(program: Program, *, logs: Path) -> dict[str, object]:
    section: dict[str, object] = {
        "command": shlex.join(program.command),
        "priority": program.priority,
        "autostart": "false",
        "autorestart": "true",
        "startsecs": program.start_s,
        "startretries": START_RETRIES,
        "stopsignal": program.stop_signal,
        "stopwaitsecs": program.stop_wait_s,
        "killasgroup": "true",
        "redirect_stderr": "true",
        "stdout_logfile": logs / f"{program.name}.log",
        "stdout_logfile_maxbytes": LOG_BYTES,
        "stdout_logfile_backups": 2,
    }
    if program.user is not None:
        section["user"] = program.user
    if program.environment:
        section["environment"] = ",".join(f'{name}="{value}"' for name, value in program.environment.items())
    return section


def _render_section(title: str, values: dict[str, object]) -> str:
    # supervisord expands %(name)s in every value.
    lines = [f"{name}={str(value).replace('%', '%%')}" for name, value in values.items()]
    return "\n".join([f"[{title}]", *lines, ""])
