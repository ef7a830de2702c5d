"""Removes what a killed build of an operator leaves behind. Knows torch's lock files; does not know what is built.

torch lets one process build and the others wait until its lock file is gone. A builder that is killed cannot remove it,
and then every later run would wait without end and without a word.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
DEFAULT_FOLDER = "~/.cache/torch_extensions"
LOOK_AGAIN_S = 0.5  # a builder that is done closes its lock a moment before it removes it


def find_build_folder(environment: dict[str, str]) -> Path:
    """Return where torch builds, as it finds it itself."""
    return Path(environment.get("TORCH_EXTENSIONS_DIR") or DEFAULT_FOLDER).expanduser()


def remove_dead_locks(folder: Path) -> None:
    """Remove each lock that no process of this host has open, as its builder has. Needs /proc; else does nothing."""
    if not PROCESSES.is_dir():
        return
    dead = _find_unheld(folder)
    if dead:
        time.sleep(LOOK_AGAIN_S)
        for lock in dead & _find_unheld(folder):
            lock.unlink(missing_ok=True)


def _find_unheld(folder: Path) -> set[Path]:
    locks = {lock.resolve() for lock in folder.glob("**/lock")}
    return locks - _find_open_files() if locks else locks


def _find_open_files() -> set[Path]:
    files = set()
    for entry in PROCESSES.glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has closed it meanwhile, or is not ours to look at
            files.add(Path(os.readlink(entry)))  # noqa: PTH115 - as it is, not looked up
    return files
