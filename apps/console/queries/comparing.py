"""Two trajectories side by side: their steps in order, and where they part."""

from dataclasses import dataclass
from itertools import zip_longest

from apps.accounts.models import User
from apps.console.queries import steps
from apps.trajectories.models import Trajectory

TRIES = 20


@dataclass(frozen=True, kw_only=True)
class Row:
    """The steps of one place in both; `is_same`: they were asked and answered the same."""

    left: steps.StepCard | None
    right: steps.StepCard | None
    is_same: bool


def compare(left: Trajectory, right: Trajectory, *, user: User) -> list[Row]:
    """Return the first steps of the main lines, place by place."""
    lines = [
        [card for card in steps.read_window(one, user=user, first=0).cards if not card.step.side_call]
        for one in (left, right)
    ]
    return [Row(left=one, right=other, is_same=_says_same(one, other)) for one, other in zip_longest(*lines)]


def _says_same(one: steps.StepCard | None, other: steps.StepCard | None) -> bool:
    if one is None or other is None:
        return False
    return (one.new_messages, one.answer) == (other.new_messages, other.answer)


def list_tries(trajectory: Trajectory) -> list[Trajectory]:
    """Return other tries of its group, if it belongs to one."""
    if not trajectory.group:
        return []
    rows = Trajectory.objects.filter(project=trajectory.project_id, group=trajectory.group, deleted_at=None)
    return list(rows.exclude(pk=trajectory.pk).order_by("-pk")[:TRIES])
