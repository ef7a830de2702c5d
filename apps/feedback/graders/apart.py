"""Has a function that may take time without end, or memory, work in a process of its own, which can be ended. What an
agent answers is calculated by scorers of others: `9**9**9` would keep the graders of every team.
"""

import os
import resource
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

MAX_BYTES = 8 * 1024**3  # of its address space
_VALUE, _ERROR = b"=", b"!"
_MAX_SAID = 4096  # what a pipe takes at once


class ApartError(Exception):
    """It did not come to a value; the message says why, in words."""


def work_apart(work: Callable[[], float], *, seconds: float) -> float:
    """Return what `work` returns. Raises ApartError when it fails, ends its process, or takes longer.

    It sees what this process has, and leaves nothing here. It may use none of its connections.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, writing, seconds=seconds)
    os.close(writing)
    try:
        is_said, _, _ = select.select([reading], [], [], seconds)
        said = os.read(reading, _MAX_SAID) if is_said else b""
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if said.startswith(_VALUE):
        return float(said[1:])
    if said.startswith(_ERROR):
        raise ApartError(said[1:].decode(errors="replace"))
    raise ApartError("its process ended" if is_said else f"it takes more than {seconds:g} s")


def _work(work: Callable[[], float], writing: int, *, seconds: float) -> NoReturn:
    """The child's whole life."""
    try:
        for number in (signal.SIGTERM, signal.SIGINT):  # not as the worker answers them
            signal.signal(number, signal.SIG_DFL)
        limit = int(seconds) + 5  # should nobody be there any more to end it
        for kind, most in ((resource.RLIMIT_CPU, limit), (resource.RLIMIT_AS, MAX_BYTES)):
            with suppress(ValueError, OSError):
                resource.setrlimit(kind, (most, most))
        said = _VALUE + repr(float(work())).encode()
    except BaseException as error:  # noqa: BLE001 (the edge: nothing of the parent's may go on here)
        said = _ERROR + f"{type(error).__name__}: {str(error)[:200]}".encode(errors="replace")
    finally:
        with suppress(OSError):
            os.write(writing, said)
        os._exit(0)
