"""One platform at a time in a data directory: two servers on the same files would destroy them."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from worker.host.errors import HostError

LOCK_FILE = "up.lock"
SECOND = "CLAW_DATA_DIR=var-2 CLAW_PORT=8001 CLAW_ENGINE_PORT=8101"


@contextmanager
def hold(data_dir: Path, *, url: str = "") -> Iterator[None]:
    """Hold the data directory, for a platform at `url`. Raises HostError when another process does.

    A killed holder lets go by itself.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise HostError(f"{data_dir} cannot be written ({error}): choose another CLAW_DATA_DIR") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise HostError(_describe_holder(handle, data_dir)) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} {url}".encode(), 0)
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


def _describe_holder(handle: int, data_dir: Path) -> str:
    where = f" at {url}" if (url := _read(handle)[1]) else ""
    return (
        f"the platform runs already{where}, on the data in {data_dir} (process {_read_pid(handle)}): stop it with "
        f"`make stop`; or start a second one beside it, with data and ports of its own:\n    {SECOND} make run"
    )


def _read_pid(handle: int) -> int | None:
    text = _read(handle)[0]
    return int(text) if text.isdecimal() else None


def _read(handle: int) -> tuple[str, str]:
    """Return the holder's process id and address as they are written, "" for what is not."""
    pid, _, url = os.pread(handle, 2000, 0).decode(errors="replace").strip().partition(" ")
    return pid, url
