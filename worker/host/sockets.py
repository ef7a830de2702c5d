"""Where the embedded servers' Unix sockets lie. A socket's path may have about 100 bytes, a data directory's more."""

import hashlib
import tempfile
from pathlib import Path

LONGEST_FOLDER = 70


def socket_folder(data_dir: Path) -> Path:
    """Return the folder for sockets: the data directory, or a short one named by its hash when the path is too long."""
    if len(str(data_dir).encode()) <= LONGEST_FOLDER:
        return data_dir
    digest = hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"claw-{digest}"


def postgres_socket_dir(data_dir: Path) -> Path:
    """Return the folder of Postgres' socket."""
    return socket_folder(data_dir) / "postgres-socket"


def valkey_socket(data_dir: Path) -> Path:
    """Return the path of Valkey's socket."""
    return socket_folder(data_dir) / "valkey.sock"
