"""Where torch builds operators, and what a killed build leaves behind. Knows its lock files, not what is built.

torch lets one process build and the others wait until its lock file is gone. A builder that is killed cannot remove it,
and then every later run would wait without end and without a word.
"""

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROCESSES = Path("/proc")
BUILD_FOLDER = "TORCH_EXTENSIONS_DIR"  # torch's own variable
DEFAULT_FOLDER = "~/.cache/torch_extensions"
LOOK_AGAIN_S = 0.5  # a builder that is done closes its lock a moment before it removes it


def find_build_folder(environment: Mapping[str, str]) -> Path:
    """Return where torch is told to build or else a folder that no other installation has.

    A build names its installation's paths: two that shared a folder would build anew whenever they take turns.
    """
    if told := environment.get(BUILD_FOLDER):
        return Path(told).expanduser()
    return Path(DEFAULT_FOLDER).expanduser() / hashlib.sha256(sys.prefix.encode()).hexdigest()[:12]


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
