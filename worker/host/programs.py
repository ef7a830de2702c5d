"""What runs on one host: the embedded servers and the lines of the Procfile, as programs for the supervisor.

Reads a Procfile and fills in its variables; does not know what the programs do.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Literal

from worker.host import postgres, valkey
from worker.host.errors import HostError
from worker.host.sockets import postgres_socket_dir, valkey_socket

PGDATA = "pgdata"
SERVICES = ("postgres", "valkey")
PROGRAM_START_S = 5  # a Python program that lacks something says so within its imports
_STOP_WAIT_S = {"web": 20, "train": 20, "engine": 15, "postgres": 60}
_PRIORITIES = {"engine": 20}  # it stops after whoever asks it: answers that are on their way get their end


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One long-running command. Programs of a lower `priority` stop last."""

    name: str
    command: tuple[str, ...]
    priority: int = 50
    user: str | None = None
    stop_signal: Literal["TERM", "INT"] = "TERM"
    stop_wait_s: int = 10
    start_s: int = 1  # alive for so long, it counts as started
    environment: dict[str, str] = field(default_factory=dict)


def read_procfile(path: Path, *, variables: dict[str, str]) -> list[Program]:
    """Return the Procfile's programs. Raises HostError for a line or variable that cannot be understood."""
    programs = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, command = line.partition(":")
        if not colon or not name.strip().isidentifier() or not command.strip():
            raise HostError(f"{path.name}, line {number}: expected `name: command`, not {line!r}")
        programs.append(_program(name.strip(), command, variables=variables, where=f"{path.name}, line {number}"))
    return programs


def _program(name: str, command: str, *, variables: dict[str, str], where: str) -> Program:
    try:
        # Words are split before the variables are filled in: a folder's name may hold blanks.
        words = tuple([Template(word).substitute(variables) for word in shlex.split(command)])
    except KeyError as error:
        raise HostError(f"{where}: the variable {error} is not known") from error
    except ValueError as error:
        raise HostError(f"{where}: {error}") from error
    return Program(
        name=name,
        command=words,
        priority=_PRIORITIES.get(name, 50),
        stop_wait_s=_STOP_WAIT_S.get(name, 10),
        start_s=PROGRAM_START_S,
    )


def postgres_program(data_dir: Path, *, say: Callable[[str], None]) -> Program:
    """Create the embedded Postgres' cluster unless it is there, and return its server."""
    pgdata, socket_dir = data_dir / PGDATA, postgres_socket_dir(data_dir)
    for folder in postgres.prepare(pgdata, socket_dir=socket_dir):
        say(f"postgres: everyone may now pass through {folder}, since it runs as the user {postgres.SYSTEM_USER}")
    return Program(
        name="postgres",
        command=tuple(postgres.command(pgdata, socket_dir=socket_dir)),
        priority=10,
        user=postgres.server_user(),
        stop_signal="INT",  # the fast way: Postgres does not wait for its clients to leave
        stop_wait_s=_STOP_WAIT_S["postgres"],
    )


def valkey_program(data_dir: Path) -> Program:
    """Make the embedded Valkey's folder unless it is there, and return its server."""
    folder, socket = data_dir / "valkey", valkey_socket(data_dir)
    valkey.prepare(folder, socket=socket)
    return Program(name="valkey", command=tuple(valkey.command(folder, socket=socket)), priority=10)
