"""The steps of a page as a picture: in a row as they came, as wide as they took, on lines that part where a step goes
on from an earlier one than the last.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from apps.trajectories.models import Step

WIDTH, LINE = 1000, 18
_BAR = 10  # height
_LEAST = 0.12  # of a step of middling length, however short it was
_GAP = 0.14  # of the picture, between steps


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One step, in the map's units. `tone`: "side", "bad" or ""."""

    index: int
    x: float
    y: float
    width: float
    seconds: float
    n_tokens: int
    tone: str


@dataclass(frozen=True, kw_only=True)
class Join:
    """From the end of a step to the beginning of one that goes on from it."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, kw_only=True)
class StepMap:
    """The picture; `height` in its units."""

    marks: list[Mark]
    joins: list[Join]
    height: int
    bar: int = _BAR
    middle: float = _BAR / 2


def draw_map(steps: Sequence[Step]) -> StepMap | None:
    """Return the picture of neighbouring steps, None where there is nothing to see."""
    if len(steps) < 2:
        return None
    lines = _find_lines(steps)
    gap, x = WIDTH * _GAP / len(steps), 0.0
    lengths = [(step.ended_at - step.started_at).total_seconds() for step in steps]
    widths = _share(WIDTH - gap * (len(steps) - 1), lengths)
    marks: dict[str, Mark] = {}
    joins = []
    for step, width in zip(steps, widths, strict=True):
        seconds = (step.ended_at - step.started_at).total_seconds()
        mark = Mark(
            index=step.index,
            x=round(x, 1),
            y=lines[step.pk] * LINE + (LINE - _BAR) / 2,
            width=round(width, 1),
            seconds=seconds,
            n_tokens=step.n_prompt_tokens + step.n_completion_tokens,
            tone="side" if step.side_call else "bad" if step.status != "complete" else "",
        )
        marks[step.pk] = mark
        x += width + gap
        parent = marks.get(step.parent_id or "")
        if parent is not None:
            y1, y2 = parent.y + _BAR / 2, mark.y + _BAR / 2
            joins.append(Join(x1=parent.x + parent.width, y1=y1, x2=mark.x, y2=y2))
    return StepMap(marks=list(marks.values()), joins=joins, height=LINE * (max(lines.values()) + 1))


def _share(width: float, seconds: Sequence[float]) -> list[float]:
    """Return how wide each step is, so that together they have this width."""
    least = _LEAST * sum(seconds) / len(seconds) or 1.0
    shown = [max(least, length) for length in seconds]
    return [width * length / sum(shown) for length in shown]


def _find_lines(steps: Sequence[Step]) -> dict[str, int]:
    """Return on which line each step stands: its parent's, unless another one goes on there already."""
    lines: dict[str, int] = {}
    ends: list[str | None] = []  # the last step of each line
    for step in steps:
        if not ends:
            ends.append(step.parent_id)
        line = next((number for number, end in enumerate(ends) if end == step.parent_id), None)
        if line is None:
            ends.append(None)
            line = len(ends) - 1
        ends[line] = step.pk
        lines[step.pk] = line
    return lines
