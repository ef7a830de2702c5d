"""Queues background tasks by name, after commit. Knows no task's code."""

import structlog
from celery import current_app
from django.db import transaction
from kombu.exceptions import OperationalError

log = structlog.get_logger(__name__)


def queue_task(name: str, *args: str | int, expires_s: float | None = None) -> None:
    """After the current transaction commits, put the task `name` with JSON-able `args` on its queue.

    A worker that takes the message more than `expires_s` seconds later drops it.
    """
    transaction.on_commit(lambda: _send(name, args, expires_s=expires_s))


def _send(name: str, args: tuple[str | int, ...], *, expires_s: float | None) -> None:
    try:
        current_app.send_task(name, args=list(args), expires=expires_s)
    except OperationalError as error:  # The broker is away. What must happen is in a table; a beat task finds it there.
        log.error("task.unsent", task=name, args=args, error=str(error))
