"""Ends processes that an earlier start in the same data directory left behind, as a killed supervisor does.

They are known by a mark in their environment that names the data directory, so nobody else's process is ever touched.
"""

import os
from pathlib import Path

import psutil

MARK = "CLAW_SUPERVISED"
GRACE_S = 20


def stop_leftovers(data_dir: Path, *, grace_s: float = GRACE_S) -> list[str]:
    """Ask them to end, then kill; return their names and process ids."""
    found = find_leftovers(data_dir)
    names = [f"{process.info['name']} ({process.pid})" for process in found]
    for process in found:
        _signal(process, is_gentle=True)
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        _signal(process, is_gentle=False)
    psutil.wait_procs(alive, timeout=grace_s)
    return names


def find_leftovers(data_dir: Path) -> list[psutil.Process]:
    """Return running processes that carry this data directory's mark, except ourselves."""
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == str(data_dir):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # another user's, or gone already
    return found


def _signal(process: psutil.Process, *, is_gentle: bool) -> None:
    try:
        if is_gentle:
            process.terminate()
        else:
            process.kill()
    except psutil.NoSuchProcess:
        pass
