"""Knows the one member of a family of processes that must not be killed with the others.

Python's multiprocessing has a process of its own, the resource tracker, that removes shared memory and other things
with names which the family leaves behind. It ends by itself once all others have, and minds no SIGTERM before.
"""

import psutil

TRACKER = "multiprocessing.resource_tracker"


def is_tracker(process: psutil.Process) -> bool:
    """Say whether it is a resource tracker."""
    try:
        return any(TRACKER in word for word in process.cmdline())
    except (psutil.Error, OSError):  # it has ended, or is somebody else's
        return False
