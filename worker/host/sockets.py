"""Where the embedded servers' Unix sockets lie. A socket's path may have about 100 bytes, a data directory's more."""

import hashlib
import os
import tempfile
from pathlib import Path

from worker.host.errors import HostError

LONGEST_FOLDER = 70


def socket_folder(data_dir: Path) -> Path:
    """Return the folder for sockets: the data directory, or a short one named by its hash when the path is too long."""
    if len(str(data_dir).encode()) <= LONGEST_FOLDER:
        return data_dir
    digest = hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"claw-{digest}"


def make_socket_folder(data_dir: Path) -> None:
    """Make the folder for sockets. Raises HostError when the short one, in a place open to all, is somebody else's."""
    folder = socket_folder(data_dir)
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    if folder != data_dir and (folder.is_symlink() or folder.stat().st_uid != os.geteuid()):
        raise HostError(f"{folder} belongs to another user: remove it, or choose a CLAW_DATA_DIR with a shorter path")


def postgres_socket_dir(data_dir: Path) -> Path:
    """Return the folder of Postgres' socket."""
    return socket_folder(data_dir) / "postgres-socket"


def valkey_socket(data_dir: Path) -> Path:
    """Return the path of Valkey's socket."""
    return socket_folder(data_dir) / "valkey.sock"
