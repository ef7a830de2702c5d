"""Runs vLLM as a child and leaves nothing of it behind.

vLLM is a family: a server, an engine core, workers. When the server is killed, the others stay and keep gigabytes, so
somebody has to outlive it and clear up.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from worker.parent import end_with_parent

AUTOGROUP = Path("/proc/self/autogroup")


def run_to_the_end(
    argv: list[str],
    environment: dict[str, str],
    *,
    niceness: int = 0,
    is_dead: Callable[[], bool] = lambda: False,
    ask_every_s: float = 5.0,
) -> int:
    """Run the command in a session of its own, pass signals on, and return its exit code as a shell would.

    `niceness`: how much the command yields to others that want the same cores (0 to 19). Whatever is left of its
    session's first group when it has ended is killed; so is all of it once `is_dead` says that it does nothing any
    more. If we are killed ourselves, the kernel tells it to stop.
    """
    dies_with_us = end_with_parent(signal.SIGTERM)

    def prepare() -> None:
        if dies_with_us is not None:
            dies_with_us()
        be_nice(niceness)

    child = subprocess.Popen(argv, env=environment, start_new_session=True, preexec_fn=prepare)  # noqa: PLW1509 - no thread runs yet

    def pass_on(number: int, _frame: object) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    while (code := _wait(child, ask_every_s)) is None:
        if is_dead():
            sys.stderr.write("worker.engine: the server lives and its engine is dead: both are ended\n")
            _kill_group(child.pid)
    _kill_group(child.pid)
    return code if code >= 0 else 128 - code


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def be_nice(niceness: int) -> None:
    """Yield to others from now on. Linux may weigh whole sessions first, and a process's own niceness only within."""
    os.nice(niceness)
    with suppress(OSError):
        AUTOGROUP.write_text(str(niceness), encoding="ascii")
