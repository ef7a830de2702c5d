"""Ends processes that an earlier start in the same data directory left behind, as a killed supervisor does.

They are known by a mark in their environment that names the data directory, so nobody else's process is ever touched.
"""

import os
from pathlib import Path

import psutil

from worker.trackers import is_tracker

MARK = "CLAW_SUPERVISED"
GRACE_S = 20


def stop_leftovers(data_dir: Path, *, grace_s: float = GRACE_S) -> list[str]:
    """Ask them to end, then kill, all but those that clear up behind the others; return names and process ids."""
    found = find_leftovers(data_dir)
    names = [_describe(process) for process in found]
    for process in found:
        _signal(process, is_gentle=True)
    _, alive = psutil.wait_procs(found, timeout=grace_s)
    for process in alive:
        if not is_tracker(process):
            _signal(process, is_gentle=False)
    psutil.wait_procs(alive, timeout=grace_s)
    return names


def find_leftovers(data_dir: Path) -> list[psutil.Process]:
    """Return running processes that carry this data directory's mark, and those below them, except ourselves.

    Some programs write a title over their environment; their parents have not.
    """
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _has_mark(process, data_dir):
            found[process.pid] = process
            found |= {child.pid: child for child in _descendants(process)}
    return list(found.values())


def _has_mark(process: psutil.Process, data_dir: Path) -> bool:
    try:
        return process.environ().get(MARK) == str(data_dir)
    except (psutil.Error, OSError):
        return False  # another user's, or gone already


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.NoSuchProcess:
        return f"process {process.pid}"


def _signal(process: psutil.Process, *, is_gentle: bool) -> None:
    try:
        if is_gentle:
            process.terminate()
        else:
            process.kill()
    except psutil.NoSuchProcess:
        pass
