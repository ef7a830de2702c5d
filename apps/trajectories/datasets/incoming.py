"""A trajectory on its way into the pool, whatever file it came from, and the error that names a bad line.

Knows no format and writes nothing.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from operator import is_
from typing import Any

from apps.core.texts import find_fault
from apps.trajectories.calls import Sampling
from apps.trajectories.models import Trajectory
from apps.trajectories.services import MAX_METADATA_BYTES

_LENGTHS = {"title": 200, "group": 100}


class BadLine(Exception):
    """A line that cannot be imported, and why."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class IncomingStep:
    """One model call, in tokens or in messages: ids are int32 and log-probs float32, packed; None: it has none.

    `follows` is the place (in the trajectory's list) of the step that its messages go on from, None if nothing is
    known of that.
    """

    line: int
    index: int
    answer: dict[str, Any]
    prompt_ids: bytes = b""
    completion_ids: bytes = b""
    logprobs: bytes | None = None
    messages: list[Any] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    follows: int | None = None
    reward: float | None = None
    version: str = ""
    finish_reason: str = ""
    status: str = "complete"
    side_call: str = ""
    is_exact: bool = False
    is_excluded: bool = False
    token_check: str = ""
    constraints: str = ""
    client_step_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    sampling: Sampling = field(default_factory=Sampling)
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """One trajectory. `source_id`: its name where it came from; `reward_field`: the name of its reward there."""

    line: int
    source_id: str = ""
    channel: str = ""
    group: str = ""
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    reward: float | None = None
    reward_field: str = "trajectory_reward"
    is_excluded: bool = False
    has_error: bool = False
    started_at: datetime | None = None
    steps: Sequence[IncomingStep] = ()


def check_incoming(incoming: Incoming) -> None:
    """Raise BadLine for what the pool could not hold, whichever format it came in."""
    for name, length in _LENGTHS.items():
        if len(getattr(incoming, name)) > length:
            raise BadLine(incoming.line, f"{name}: it may have {length} characters")
    for name in ("title", "group", "metadata"):
        if fault := find_fault(getattr(incoming, name)):
            raise BadLine(incoming.line, f"{name}: {fault}")
    _check_size(incoming.line, "metadata", incoming.metadata)
    check_reward(incoming.line, incoming.reward, name=incoming.reward_field)
    for step in incoming.steps:
        _check_step(step)
    _check_names(incoming.steps)
    for before, now in pairwise(incoming.steps):
        if now.index <= before.index:
            raise BadLine(now.line, f"index: two steps of one trajectory have {now.index}")


def _check_names(steps: Sequence[IncomingStep]) -> None:
    seen: set[str] = set()
    for step in steps:
        if step.client_step_id and step.client_step_id in seen:
            raise BadLine(step.line, f"client_step_id: two steps of one trajectory are called {step.client_step_id!r}")
        seen.add(step.client_step_id)


def _check_step(step: IncomingStep) -> None:
    if step.logprobs is not None and len(step.logprobs) != len(step.completion_ids):
        n_logprobs, n_ids = len(step.logprobs) // 4, len(step.completion_ids) // 4
        raise BadLine(step.line, f"logprobs: {n_logprobs} log-probs for {n_ids} completion ids: each needs its own")
    check_reward(step.line, step.reward, name="reward")
    texts = [step.client_step_id, step.finish_reason, step.token_check, step.constraints, step.version]
    if fault := find_fault([step.metadata, *texts]):
        raise BadLine(step.line, fault)
    _check_size(step.line, "metadata", step.metadata)


def _check_size(line: int, name: str, value: dict[str, Any]) -> None:
    if (n_bytes := len(json.dumps(value))) > MAX_METADATA_BYTES:
        raise BadLine(line, f"{name}: it may have {MAX_METADATA_BYTES} bytes; this has {n_bytes}")


def check_reward(line: int, reward: float | None, *, name: str) -> None:
    """Raise BadLine for what no label can say."""
    if reward is not None and not (math.isfinite(reward) and -1 <= reward <= 1):
        raise BadLine(line, f"{name}: a reward is a number from -1 to 1; this is {reward}: scale it first")


def count_common(step: IncomingStep, follows: IncomingStep | None) -> int:
    """Return how many messages the step has from the one that it follows: all of that one's, the very same, or none."""
    if follows is None or len(follows.messages) > len(step.messages):
        return 0
    return len(follows.messages) if all(map(is_, follows.messages, step.messages)) else 0


def hash_incoming(incoming: Incoming) -> str:
    """Return the SHA-256 (hex) over all that it says, but for its name and where in a file it stood."""
    return hashlib.sha256(tell_incoming(incoming).encode()).hexdigest()


def tell_incoming(incoming: Incoming) -> str:
    """Return all that: each message once, however many steps saw it."""
    steps = [_tell_step(step, incoming.steps) for step in incoming.steps]
    content = {**vars(incoming), "line": 0, "source_id": "", "steps": steps}
    return json.dumps(content, sort_keys=True, default=_spell)


def _tell_step(step: IncomingStep, steps: Sequence[IncomingStep]) -> dict[str, Any]:
    n_common = count_common(step, None if step.follows is None else steps[step.follows])
    # `asdict` would copy every message.
    said = {"n_common": n_common, "messages": step.messages[n_common:]}
    return {**vars(step), **said, "line": 0, "sampling": vars(step.sampling)}


def _spell(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, kw_only=True)
class Rewarded:
    """A trajectory that is in the pool now, and the rewards that it and its steps (by id) came with."""

    trajectory: Trajectory
    reward: float | None
    step_rewards: dict[str, float]
