"""An end to calls over the network. Time-outs of sockets begin anew with each byte, so whoever sends one now and then
would be waited for without end.
"""

import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from urllib3.connection import HTTPConnection, HTTPSConnection

_own = threading.local()


@contextmanager
def hang_up_after(seconds: float) -> Iterator[threading.Event]:
    """Close this thread's watched connections after so long; says whether it came to that."""
    is_over, sockets = threading.Event(), _read_sockets()
    _own.is_over = is_over

    def hang_up() -> None:
        is_over.set()
        for one in list(sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    try:
        yield is_over
    finally:
        timer.cancel()
        _own.is_over = None


class WatchedConnection(HTTPConnection):
    """One of urllib3's, closed when its thread's call is over."""

    def connect(self) -> None:
        super().connect()
        _watch(self.sock)


class WatchedSecureConnection(HTTPSConnection):
    """Likewise, by TLS."""

    def connect(self) -> None:
        super().connect()
        _watch(self.sock)


def _watch(connection: socket.socket) -> None:
    """Have the connection closed when its thread's call is over; raises OSError when it is over already."""
    _read_sockets().add(connection)
    is_over: threading.Event | None = getattr(_own, "is_over", None)
    if is_over is not None and is_over.is_set():
        raise OSError("its time is over")


def _read_sockets() -> "weakref.WeakSet[socket.socket]":
    """Return this thread's open connections: one may live for several calls."""
    if not hasattr(_own, "sockets"):
        _own.sockets = weakref.WeakSet[socket.socket]()
    sockets: weakref.WeakSet[socket.socket] = _own.sockets
    return sockets
