"""Signs of life of who grades, however long a judge or a webhook takes: after `LOST_AFTER` without one, the work is
given to others. Knows nothing of what the work is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import structlog
from django.db import Error, connections

log = structlog.get_logger(__name__)

BEAT_S = 20.0
LOST_AFTER = timedelta(seconds=90)


@contextmanager
def kept_alive(beat: Callable[[], object]) -> Iterator[None]:
    """While the block runs, call `beat` every `BEAT_S` seconds, in a thread with a database connection of its own."""
    ended = threading.Event()
    thread = threading.Thread(target=_beat_until, args=(ended, beat), name="sign-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _beat_until(ended: threading.Event, beat: Callable[[], object]) -> None:
    while not ended.wait(BEAT_S):
        try:
            beat()
        except Error as error:  # the database is away for a moment: the next beat may come in time
            log.warning("grading.no_sign_of_life", error=str(error))
        finally:
            connections.close_all()  # this thread's own
