"""Server-sent events as model servers send them: one `data:` line an event.

Works on bytes, so a character split between two reads is whole again before anyone decodes it.
"""

DONE = b"[DONE]"
LONGEST_LINE = 32 * 1024 * 1024


class LineTooLongError(ValueError):
    """The server sends a line without an end."""


class EventReader:
    """Cuts a stream of bytes into the payloads of its `data:` lines."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of the line that has not ended yet
        self._n_waiting = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads whose lines are complete now. Comments, `event:` and `id:` lines are left out."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts.clear()
            self._n_waiting = 0
        if rest:
            self._parts.append(rest)
            self._n_waiting += len(rest)
            if self._n_waiting > LONGEST_LINE:
                raise LineTooLongError(f"the engine sent a line of more than {LONGEST_LINE} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def event(payload: bytes) -> bytes:
    """Return one event with this payload."""
    return b"data: %b\n\n" % payload


def comment(text: str) -> bytes:
    """Return a line that every client skips."""
    return b": %b\n\n" % text.encode()
