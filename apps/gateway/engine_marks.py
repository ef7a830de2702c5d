"""What calls themselves have learned of engines: one that could not be reached is left alone for a moment.

A circuit breaker: after the rest a single call tries (half-open), and the others follow when it gets through. Knows no
HTTP; the engines' lasting health is the reconciling task's to find.
"""

import time
from dataclasses import dataclass

FIRST_REST_S = 0.25
LONGEST_REST_S = 4.0


@dataclass(slots=True)
class _Mark:
    reason: str
    n_failures: int = 0
    rests_until: float = 0.0  # time.monotonic()
    is_tried: bool = False  # a call is finding out


class EngineMarks:
    """By engine id; an engine without a mark is well."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def is_usable(self, engine_id: str) -> bool:
        """Whether a call may go there now: it is well, or its rest is over and nobody else is finding out."""
        mark = self._marks.get(engine_id)
        return mark is None or (not mark.is_tried and time.monotonic() >= mark.rests_until)

    def reason(self, engine_id: str) -> str:
        """Why it is left alone, "" when it is not."""
        mark = self._marks.get(engine_id)
        return mark.reason if mark else ""

    def note_sent(self, engine_id: str) -> None:
        """A call goes there: if the engine rested, this one finds out."""
        if mark := self._marks.get(engine_id):
            mark.is_tried = True

    def note_reached(self, engine_id: str) -> bool:
        """It answered, whatever it said. Returns whether that is news."""
        return self._marks.pop(engine_id, None) is not None

    def note_unreachable(self, engine_id: str, *, reason: str) -> None:
        """It could not be reached: it rests, twice as long each time in a row."""
        mark = self._marks.setdefault(engine_id, _Mark(reason))
        rest_s = min(FIRST_REST_S * 2**mark.n_failures, LONGEST_REST_S)
        mark.reason, mark.n_failures = reason, min(mark.n_failures + 1, 16)
        mark.rests_until, mark.is_tried = time.monotonic() + rest_s, False

    def note_unknown(self, engine_id: str) -> None:
        """The call ended before anything was learned: the next one finds out."""
        if mark := self._marks.get(engine_id):
            mark.is_tried = False
