"""The hosts that a run of several may use: DeepSpeed's host file, read and checked. Pure but for the file."""

from dataclasses import dataclass
from pathlib import Path

from apps.core.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class HostSlots:
    """One line of the host file: a name that ssh knows, and how many trainer processes fit there."""

    name: str
    n_slots: int


def check_hosts(hostfile: Path | None, *, n_hosts: int, n_processes: int) -> None:
    """Raise InvalidInput unless the host file offers so many hosts with so many slots each."""
    if n_hosts == 1:
        return
    if hostfile is None:
        raise InvalidInput(
            "recipe.n_hosts: no host file is set up; name DeepSpeed's in CLAW_TRAIN_HOSTFILE, or use 1 host",
            field="recipe.n_hosts",
        )
    fitting = [host for host in read_hostfile(hostfile) if host.n_slots >= n_processes]
    if len(fitting) < n_hosts:
        raise InvalidInput(
            f"recipe.n_hosts: {hostfile} has {len(fitting)} hosts with {n_processes} slots or more, not {n_hosts}",
            field="recipe.n_hosts",
        )


def read_hostfile(path: Path) -> list[HostSlots]:
    """Return the hosts in the file's order. Raises InvalidInput for what DeepSpeed would not read."""
    try:
        lines = [line.partition("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise InvalidInput(f"the host file {path} cannot be read: {error.strerror}", field="recipe.n_hosts") from error
    return [_read_line(words, path) for words in lines if words]


def _read_line(words: list[str], path: Path) -> HostSlots:
    slots = words[1].removeprefix("slots=") if len(words) == 2 else ""
    if not slots.isdigit():
        raise InvalidInput(f"{path}: {' '.join(words)!r} is not of the form `name slots=4`", field="recipe.n_hosts")
    return HostSlots(name=words[0], n_slots=int(slots))
