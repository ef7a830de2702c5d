"""The two sides of a pair: steps, whole trajectories, or messages that nobody sampled in the pool. Checks them; writes
nothing."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from apps.core.errors import InvalidInput
from apps.core.texts import find_fault
from apps.registry.models import Version
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import load_messages

MAX_MESSAGE_BYTES = 1_000_000
_MEMBERS = {"role", "content", "tool_calls"}
ONE_MESSAGE = "an answer is an assistant message: a text as content, or tool_calls, or both"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side: exactly one of the three. `version` is the weights that spoke a message, if any did."""

    step: Step | None = None
    trajectory: Trajectory | None = None
    message: dict[str, Any] | None = None
    version: Version | None = None

    @property
    def name(self) -> str:
        """What tells the side from others."""
        if self.step is not None:
            return self.step.pk
        if self.trajectory is not None:
            return self.trajectory.pk
        return json.dumps(self.message, sort_keys=True, separators=(",", ":"))

    @property
    def said(self) -> tuple[str, list[tuple[str, str]]]:
        """The words of an answer, and what it calls with what: the ids of calls say nothing."""
        answer = answer_of(self.step) if self.step is not None else self.message or {}
        functions = (call.get("function") or {} for call in answer.get("tool_calls") or ())
        return spoken_text(answer), [(one.get("name", ""), one.get("arguments", "")) for one in functions]


def read_message(message: Any) -> dict[str, Any]:
    """Return an assistant message as it is kept: `content` a text, and `tool_calls`. Raises InvalidInput."""
    if not isinstance(message, dict) or (unknown := sorted(set(message) - _MEMBERS)):
        found = f"; it has no {unknown[0]!r}" if isinstance(message, dict) and unknown else ""
        raise InvalidInput(f"{ONE_MESSAGE}{found}", field="message")
    if message.get("role", "assistant") != "assistant":
        raise InvalidInput("the corrected answer is the assistant's: its role is assistant", field="message")
    content, calls = message.get("content"), message.get("tool_calls")
    calls = [] if calls is None else calls
    if content is not None and not isinstance(content, str):
        raise InvalidInput("content is one text", field="message")
    if not isinstance(calls, list) or not all(_is_call(call) for call in calls):
        shape = "{id, type, function: {name, arguments}}, all of them texts and the type function"
        raise InvalidInput(f"tool_calls is a list of {shape}", field="message")
    if not (content or "").strip() and not calls:
        raise InvalidInput(ONE_MESSAGE, field="message")
    if fault := find_fault(message):
        raise InvalidInput(fault, field="message")
    if len(json.dumps(message)) > MAX_MESSAGE_BYTES:
        raise InvalidInput(f"a message may have {MAX_MESSAGE_BYTES} bytes", field="message")
    kept: dict[str, Any] = {"role": "assistant", "content": content}
    return {**kept, "tool_calls": calls} if calls else kept


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and isinstance(call.get("id", ""), str)
        and call.get("type", "function") == "function"
        and isinstance(function.get("name"), str)
        and isinstance(function.get("arguments"), str)
    )


def answer_of(step: Step) -> dict[str, Any]:
    """Return what the step said, chat shape."""
    answer: dict[str, Any] = json.loads(bytes(step.answer))
    return answer


def check_sides(one: Side, other: Side) -> None:
    """Raise InvalidInput unless the two can be compared: both whole trajectories, or both answers to one prompt."""
    if one.name == other.name:
        raise InvalidInput("there is nothing to choose: both sides are the same", field="rejected")
    if (one.trajectory is None) != (other.trajectory is None):
        raise InvalidInput("compare answers with answers, and trajectories with trajectories", field="rejected")
    if one.trajectory is None and one.step is None and other.step is None:
        raise InvalidInput("one of the two answers must be a step's: it tells the prompt", field="chosen")
    if one.step is not None and other.step is not None and load_messages(one.step.pk) != load_messages(other.step.pk):
        raise InvalidInput(
            "these two steps do not answer the same prompt: compare their trajectories instead", field="rejected"
        )


def hash_pair(one: Side, other: Side, *, kind: str, field: str) -> str:
    """Return 64 hex digits that are the same for the same two sides in either order."""
    names = sorted((one.name, other.name))
    return hashlib.sha256(json.dumps([kind, field, *names]).encode()).hexdigest()
