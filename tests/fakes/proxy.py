"""A door in front of a server's Unix socket that can be shut or frozen, to play a server that is away or hangs."""

import contextlib
import socket
import threading
from pathlib import Path


class Proxy:
    """Listens on a TCP port. `shut()` cuts what is connected and turns away what comes; `freeze()` holds it up."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_open = True
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def shut(self) -> None:
        self._is_open = False
        for end in self._ends:
            hang_up(end)

    def open(self) -> None:
        self._is_open = True

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def close(self) -> None:
        """End every thread and socket."""
        self.thaw()
        hang_up(self._listener)
        self.shut()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for end in [*self._ends, self._listener]:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._ends.append(client)
            if not self._is_open:
                hang_up(client)
                continue
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self.target))
            self._ends.append(server)
            for source, sink in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, sink))
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait(60)
                sink.sendall(data)
        hang_up(source)
        hang_up(sink)


def hang_up(end: socket.socket) -> None:
    """Tell the other side, and whoever reads here, that it is over."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
