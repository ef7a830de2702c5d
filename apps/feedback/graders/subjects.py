"""What a grader sees: one step's answer with all that came before it, and what happened next. Reads steps; judges
nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import StepView, iterate_steps

MOST_STEPS = 500  # of one trajectory; those after it are not graded


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An answer to be judged. `step_id` is None where the whole trajectory is meant: then it is its last answer.

    `following` are the messages that came back before the agent spoke again: tool results, or the user's next words.
    """

    trajectory: Trajectory
    step_id: str | None
    messages: list[Any] = field(default_factory=list)
    answer: dict[str, Any] = field(default_factory=dict)
    following: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        return spoken_text(self.answer)

    def as_data(self) -> dict[str, Any]:
        """Return what leaves the platform of it: to a webhook, or to an operator's own grader."""
        return {
            "trajectory": self.trajectory.pk,
            "step": self.step_id,
            "group": self.trajectory.group,
            "metadata": self.trajectory.metadata,
            "messages": self.messages,
            "answer": self.answer,
            "following": self.following,
        }


def read_subjects(trajectory: Trajectory, *, is_by_step: bool) -> list[Subject]:
    """Return the trajectory's main line of whole answers, each as a subject, or its end as one. [] when there is none.

    Side calls and calls that failed are no answers.
    """
    views = {view.row.pk: view for view in _read_main_line(trajectory)}
    if not views:
        return []
    if not is_by_step:
        end = list(views.values())[-1]
        return [Subject(trajectory=trajectory, step_id=None, messages=end.messages, answer=end.answer)]
    following = _find_following(views)
    return [
        Subject(
            trajectory=trajectory,
            step_id=step_id,
            messages=view.messages,
            answer=view.answer,
            following=following.get(step_id, []),
        )
        for step_id, view in views.items()
    ]


def _read_main_line(trajectory: Trajectory) -> Iterator[StepView]:
    for view in iterate_steps(trajectory, limit=MOST_STEPS):
        if _is_answer(view.row):
            yield view


def _is_answer(step: Step) -> bool:
    return not step.side_call and step.status == "complete"


def _find_following(views: dict[str, StepView]) -> dict[str, list[Any]]:
    """Return by step what its first child's prompt has after the last answer."""
    found: dict[str, list[Any]] = {}
    for view in views.values():
        parent_id = view.row.parent_id
        if parent_id in views and parent_id not in found:
            found[parent_id] = _after_last_answer(view.messages)
    return found


def _after_last_answer(messages: list[Any]) -> list[Any]:
    tail = takewhile(lambda message: _role(message) != "assistant", reversed(messages))
    return [message for message in list(tail)[::-1] if _role(message) in {"user", "tool"}]


def _role(message: Any) -> str:
    return str(message.get("role", "")) if isinstance(message, dict) else ""
