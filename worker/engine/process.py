"""Runs vLLM as a child and leaves nothing of it behind.

vLLM is a family: a server, an engine core, workers. When the server is killed, the others stay and keep gigabytes, so
somebody has to outlive it and clear up. Memory with a name that they share, some hundred megabytes, is cleared up by a
member of the family: see worker/trackers.py.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from worker.parent import end_with_parent
from worker.trackers import is_tracker

AUTOGROUP = "/proc/{pid}/autogroup"
CLEAR_UP_S = 5.0


def run_to_the_end(
    argv: list[str],
    environment: dict[str, str],
    *,
    niceness: int = 0,
    is_up: Callable[[], bool] = lambda: True,
    once_up: Callable[[], None] = lambda: None,
    is_dead: Callable[[], bool] = lambda: False,
    ask_every_s: float = 5.0,
) -> int:
    """Run the command in a session of its own, pass signals on, and return its exit code as a shell would.

    `niceness`: how much the command yields to others that want the same cores (0 to 19), once `is_up` says that it has
    started, and `once_up` has been called: a start that yields to everybody may take for ever. Whatever is left of its
    session's first group when it has ended is killed; so is all of it once `is_dead` says that it does nothing any
    more. If we are killed ourselves, the kernel tells it to stop.
    """
    child = subprocess.Popen(
        argv,
        env=environment,
        start_new_session=True,
        preexec_fn=end_with_parent(signal.SIGTERM),  # noqa: PLW1509 - no thread runs yet
    )
    has_started = told = False

    def pass_on(number: int, _frame: object) -> None:
        nonlocal told
        told = True
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    while (code := _wait(child, ask_every_s)) is None:
        if told:  # vLLM loses what reaches it at some moments of its start; told twice to end it ends as well
            child.terminate()
        if is_dead():
            sys.stderr.write("worker.engine: the server lives and its engine is dead: both are ended\n")
            _kill_group(child.pid)
        elif not has_started and is_up():
            has_started = True
            once_up()
            if niceness:
                have_yield(child.pid, niceness)
    _kill_group(child.pid)
    return code if code >= 0 else 128 - code


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill_group(leader: int) -> None:
    """Kill what is left of the family; its trackers get their time to clear up first."""
    family = [process for process in psutil.process_iter() if _is_of(process, leader)]
    trackers = [process for process in family if is_tracker(process)]
    for process in family:
        if process not in trackers:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    psutil.wait_procs(trackers, timeout=CLEAR_UP_S)
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _is_of(process: psutil.Process, leader: int) -> bool:
    try:
        return os.getpgid(process.pid) == leader
    except OSError:  # it has ended
        return False


def have_yield(leader: int, niceness: int) -> None:
    """Have all of a session's first group, and what it starts, yield to others from now on.

    Linux may weigh whole sessions first, and a process's own niceness only within.
    """
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PGRP, leader, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    with suppress(OSError):
        Path(AUTOGROUP.format(pid=leader)).write_text(str(niceness), encoding="ascii")
