"""Trajectories as rows of a file, and what stands in a row. Two shapes (`shapes` has all):

- messages: a row is a conversation. `messages` holds all of it, and each of `turns` is a step whose prompt is the
  messages before `at` and whose answer is the one at it, or, where the client spelled it in its own way there, its
  `answer`. A step that the client branched off, or whose last messages were taken out again, has a row of its own:
  with `turns`, every step's prompt and answer are exact.
- tokens: a row is a step, as the engine saw and said it.

Everything that a row says of its trajectory is the same in all of the trajectory's rows. Pure but for reading steps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.datasets.models import Shape
from apps.trajectories.messages import dump_json, says_the_same
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import StepView, iterate_steps, load_tools

FORMATS = {Shape.MESSAGES: "claw.messages.v1", Shape.TOKENS: "claw.tokens.v1"}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """What a snapshot says of a trajectory: rewards, where it ended, and which judgements stood, at that moment.

    `judged` has by shape the ids of preferences and hints, and as `ends` for pairs of trajectories where the other one
    ended.
    """

    reward: float | None
    step_rewards: Mapping[str, float]
    end_index: int
    judged: Mapping[str, Any] = field(default_factory=dict)


UNSEEN = Pinned(reward=None, step_rewards={}, end_index=0)  # for somebody who may not see rewards


@dataclass(kw_only=True)
class Tally:
    """What was written and what had nothing of the shape; filled while rows are read."""

    n_rows: int = 0
    n_left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Source:
    """A trajectory to be rendered: now, or as it was pinned; for somebody from whom those in `hidden` are."""

    trajectory: Trajectory
    pinned: Pinned | None = None
    tally: Tally = field(default_factory=Tally)
    hidden: Hidden = NOTHING
    tools: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        """The whole trajectory's."""
        return self.pinned.reward if self.pinned else self.trajectory.reward

    def reward_of(self, step: Step) -> float | None:
        return self.pinned.step_rewards.get(str(step.index)) if self.pinned else step.reward

    def tools_of(self, digest: str) -> list[Any]:
        if digest not in self.tools:
            self.tools[digest] = load_tools(project_id=self.trajectory.project_id, digest=digest)
        return self.tools[digest]

    def iterate(self, *, with_messages: bool) -> Iterator[StepView]:
        for view in iterate_steps(self.trajectory, with_messages=with_messages):
            if self.pinned and view.row.index >= self.pinned.end_index:
                return
            yield view

    def count_token_rows(self) -> int:
        steps = Step.objects.filter(trajectory=self.trajectory, n_prompt_tokens__gt=0, n_completion_tokens__gt=0)
        return (steps.filter(index__lt=self.pinned.end_index) if self.pinned else steps).count()


def _render_head(source: Source, *, shape: Shape, n_rows: int) -> Row:
    trajectory = source.trajectory
    return {
        "format": FORMATS[shape],
        "trajectory": trajectory.pk,
        "n_rows": n_rows,
        "agent": trajectory.agent.slug,
        "channel": trajectory.channel,
        "group": trajectory.group,
        "title": trajectory.title,
        "trajectory_metadata": trajectory.metadata,
        "trajectory_reward": source.reward,
        "trajectory_is_excluded": trajectory.is_excluded,
        "trajectory_has_error": trajectory.has_error,
        "trajectory_started_at": say_time(trajectory.started_at),
    }


def _render_step(source: Source, step: Step) -> Row:
    """What both shapes say of a step."""
    return {
        "index": step.index,
        "reward": source.reward_of(step),
        "version": step.version_id,
        "finish_reason": step.finish_reason,
        "status": step.status,
        "side_call": step.side_call,
        "is_excluded": step.is_excluded,
        "temperature": step.temperature,
        "top_p": step.top_p,
        "top_k": step.top_k,
        "client_step_id": step.client_step_id,
        "metadata": step.metadata,
        "started_at": say_time(step.started_at),
        "ended_at": say_time(step.ended_at),
    }


def render_tokens(source: Source) -> Iterator[Row]:
    """Yield a row for each step that has tokens."""
    head = _render_head(source, shape=Shape.TOKENS, n_rows=source.count_token_rows())
    for view in source.iterate(with_messages=False):
        if view.prompt_ids and view.completion_ids:
            yield {**head, **_render_token_step(source, view)}
        else:
            source.tally.n_left_out += 1


def _render_token_step(source: Source, view: StepView) -> Row:
    is_trained = is_trainable(view.row) and not source.trajectory.is_excluded
    return {
        **_render_step(source, view.row),
        "is_exact": view.row.is_exact,
        "token_check": view.row.token_check,
        "constraints": view.row.constraints,
        "prompt_ids": view.prompt_ids,
        "completion_ids": view.completion_ids,
        "mask": [int(is_trained)] * len(view.completion_ids),
        "logprobs": view.logprobs or None,
        "answer": view.answer,
    }


def read_token_page(
    trajectory: Trajectory, *, after: int, limit: int, hidden: Hidden = NOTHING
) -> tuple[list[Row], int | None]:
    """Return up to `limit` steps after the index `after` as token rows, and the index to ask the next page with.

    Of a trajectory among `hidden` the rows have no rewards.
    """
    source = Source(trajectory=trajectory, pinned=UNSEEN if trajectory.pk in hidden else None)
    views = list(iterate_steps(trajectory, first=after + 1, limit=limit + 1, with_messages=False))
    head = _render_head(source, shape=Shape.TOKENS, n_rows=source.count_token_rows())
    shown = [view for view in views[:limit] if view.prompt_ids and view.completion_ids]
    rows = [{**head, **_render_token_step(source, view)} for view in shown]
    return rows, views[limit - 1].row.index if len(views) > limit else None


def is_trainable(step: Step) -> bool:
    """Say whether the step's sampled tokens may be trained on, as `StepQuerySet.for_training` says of many."""
    is_whole = step.status == "complete" and step.is_exact and not step.constraints
    return is_whole and not step.is_excluded and not step.side_call


def render_conversations(source: Source) -> Iterator[Row]:
    """Yield a row for each way that the conversation went."""
    views = {}
    for view in source.iterate(with_messages=True):
        if view.messages:
            views[view.row.pk] = view
        else:
            source.tally.n_left_out += 1
    goes_on_in = _find_continuations(views)
    ends = [view for step_id, view in views.items() if step_id not in goes_on_in]
    head = _render_head(source, shape=Shape.MESSAGES, n_rows=len(ends))
    for end in ends:
        turns = [end]
        while (parent_id := turns[0].row.parent_id) and goes_on_in.get(parent_id) == turns[0].row.pk:
            turns.insert(0, views[parent_id])
        messages = [*end.messages, end.answer]
        yield {
            **head,
            "messages": messages,
            "tools": source.tools_of(end.row.tools_digest),
            "turns": [_render_turn(source, view, messages) for view in turns],
        }


def _render_turn(source: Source, view: StepView, messages: Sequence[Any]) -> Row:
    at = len(view.messages)
    is_echoed = dump_json(messages[at]) == dump_json(view.answer)
    return {"at": at, **_render_step(source, view.row), **({} if is_echoed else {"answer": view.answer})}


def _find_continuations(views: Mapping[str, StepView]) -> dict[str, str]:
    """Return by step the first one that goes on exactly where it ended, with the same tools; side calls last."""
    found: dict[str, str] = {}
    for view in sorted(views.values(), key=lambda view: (bool(view.row.side_call), view.row.index)):
        parent = views.get(view.row.parent_id or "")
        if parent is None or parent.row.pk in found:
            continue
        if _goes_on_behind(parent, view) and view.row.tools_digest == parent.row.tools_digest:
            found[parent.row.pk] = view.row.pk
    return found


def _goes_on_behind(parent: StepView, view: StepView) -> bool:
    """Whether the step had seen all that its parent had, and the parent's answer, in whatever spelling."""
    n_asked = len(parent.messages)
    if view.row.shared_messages != n_asked:
        return view.row.shared_messages > n_asked
    return says_the_same(view.messages[n_asked : n_asked + 1], parent.answer)


def say_time(moment: datetime) -> str:
    """Return a moment as it stands in a row."""
    return moment.isoformat()
