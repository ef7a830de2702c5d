"""One platform at a time in a data directory: two servers on the same files would destroy them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.host.errors import HostError

LOCK_FILE = "up.lock"


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Hold the data directory. Raises HostError when another process does; a killed holder lets go by itself."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HostError(f"{data_dir} cannot be written ({error}): choose another CLAW_DATA_DIR") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise HostError(
                f"the platform runs already in {data_dir} (process {_read_pid(handle)}): "
                "stop it with `make stop`, or set CLAW_DATA_DIR to start a second one"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def find_holder(data_dir: Path) -> int | None:
    """Return the process id of whoever holds the data directory."""
    try:
        handle = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_pid(handle)
    else:
        return None
    finally:
        os.close(handle)


def _read_pid(handle: int) -> int | None:
    text = os.pread(handle, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None
