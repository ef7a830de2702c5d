"""The run's `events.jsonl`: appended line by line, safe against a crash in the middle of a line.

Knows nothing of what the events mean. Exactly one process (rank 0, or the launcher once the ranks are gone) writes.
"""

import os
import time
from pathlib import Path

from apps.core.contracts.codec import decode, encode
from apps.core.contracts.training import EVENTS_FILE, AdapterFiles, Probe, TrainerEvent


class EventLog:
    """Appends events; each is on disk before `append` returns."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / EVENTS_FILE
        drop_torn_line(self._path)

    def append(self, event: TrainerEvent) -> None:
        """Write one line and force it to disk."""
        line = (encode(event) + "\n").encode()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self) -> list[TrainerEvent]:
        """Return every whole event so far, oldest first."""
        return read_events(self._path)


def make_event(
    kind: str,
    *,
    step: int,
    metrics: dict[str, float] | None = None,
    adapter: AdapterFiles | None = None,
    probe: Probe | None = None,
    message: str = "",
    may_pass: bool = False,
) -> TrainerEvent:
    """Return an event stamped with the time of now."""
    return TrainerEvent(
        kind=kind,
        step=step,
        at=time.time(),
        metrics=metrics or {},
        adapter=adapter,
        probe=probe,
        message=message,
        may_pass=may_pass,
    )


def read_events(path: Path, *, offset: int = 0) -> list[TrainerEvent]:
    """Return the whole events in the file from byte `offset` on; a last line without newline is not there yet."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes()[offset:].rpartition(b"\n")
    return [decode(TrainerEvent, line) for line in whole.splitlines()]


def drop_torn_line(path: Path) -> None:
    """Cut off what a killed writer left of its last line, so that the next event starts on a line of its own."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
