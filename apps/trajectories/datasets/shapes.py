"""What a file's rows can say: how each shape is rendered, and of which trajectories.

The pool's own shapes are here; what people and judges said is rendered by the room above (`apps.feedback.exports`),
which has the table of all.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from django.db.models import Q

from apps.trajectories.blindness import Hidden
from apps.trajectories.datasets.models import Shape
from apps.trajectories.datasets.rows import Row, Source, render_conversations, render_tokens


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """One shape. `render` yields a trajectory's rows in order and counts in the source's tally what has nothing of it.

    A shape of judgements says by `has`, for somebody from whom some are hidden, which trajectories have any; None: all
    are rendered. `nothing` are the words where none is found.
    """

    name: Shape
    render: Callable[[Source], Iterator[Row]]
    has: Callable[[Hidden], Q] | None = None
    nothing: str = "there is no trajectory in it: nothing to export"


def render_rows(source: Source, shape: RowShape) -> Iterator[Row]:
    """Yield the rows, counted."""
    for row in shape.render(source):
        source.tally.n_rows += 1
        yield row


MESSAGES = RowShape(name=Shape.MESSAGES, render=render_conversations)
TOKENS = RowShape(name=Shape.TOKENS, render=render_tokens)
POOL_SHAPES = (MESSAGES, TOKENS)
