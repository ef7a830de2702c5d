"""Ties a child process's life to its parent's, so that nothing outlives a parent that was killed."""

import ctypes
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def end_with_parent(signal_number: signal.Signals) -> Callable[[], None] | None:
    """Return a `preexec_fn`: the kernel sends the child this signal when the parent's thread ends. Linux only."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)  # loaded before the fork: nothing may be imported in the child

    def ask_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)

    return ask_kernel
