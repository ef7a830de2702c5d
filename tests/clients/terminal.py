"""A terminal that a program may draw its screen in, for agents whose windows do more than their commands."""

import fcntl
import os
import pty
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.clients.running import Place

ROWS, COLUMNS = 50, 160
WAIT_S = 60
TYPING_S = 0.5  # a program takes what comes at once for a paste, and Enter with it


class Terminal:
    """What a person does at it. `screen` is all that was drawn so far."""

    def __init__(self, keyboard: int) -> None:
        self._keyboard = keyboard
        self.screen = ""

    def enter(self, text: str) -> None:
        """Type a line."""
        os.write(self._keyboard, text.encode())
        time.sleep(TYPING_S)
        os.write(self._keyboard, b"\r")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Look on until it is true."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, self.screen[-3000:]
            time.sleep(0.1)

    def watch(self) -> None:
        """Take in what is drawn until the program closes its end."""
        with suppress(OSError):
            while data := os.read(self._keyboard, 65536):
                self.screen += data.decode(errors="replace")


@contextmanager
def open_terminal(command: Sequence[str | Path], *, place: Place) -> Iterator[Terminal]:
    """Run the command in a terminal while the block runs."""
    keyboard, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = dict(place.env) | {"TERM": "xterm-256color"}
    child = subprocess.Popen(
        command, cwd=place.work, env=env, stdin=line, stdout=line, stderr=line, start_new_session=True
    )
    os.close(line)
    terminal = Terminal(keyboard)
    watcher = threading.Thread(target=terminal.watch)
    watcher.start()
    try:
        yield terminal
    finally:
        child.terminate()
        child.wait(timeout=WAIT_S)
        watcher.join(timeout=WAIT_S)
        os.close(keyboard)
