"""Tells a long task that its worker was asked to stop. Works in the solo pool, where both are one process."""

import threading

from celery.signals import worker_shutting_down

_asked = threading.Event()


@worker_shutting_down.connect
def note_shutdown(**_: object) -> None:
    """Called by Celery inside its signal handler."""
    _asked.set()


def is_worker_stopping() -> bool:
    """Say whether the worker was asked to stop."""
    return _asked.is_set()
