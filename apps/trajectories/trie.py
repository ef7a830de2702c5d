"""The token trie: a step's prompt is what it shares with its parent's prompt + completion, then a tail of its own.

Branch points may be anywhere: a client that takes a message out again makes a branch inside the parent's prompt. What
goes in comes out again byte for byte. Messages are kept in the same way. Knows no tokenizer and no dialect.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from apps.core.contracts.arrays import ID_BYTES, unpack_ids, unpack_logprobs
from apps.trajectories.messages import dump_json
from apps.trajectories.models import Step, Tools, Trajectory


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a step had seen and said: the tokens (int32) and messages that a child may share."""

    token_ids: bytes = b""
    messages: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step, whole. `logprobs[i]` (nats) is that of `completion_ids[i]`; `messages` went in, `answer` came out."""

    row: Step
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    messages: list[Any]
    answer: dict[str, Any]


def split_tokens(parent: bytes, prompt: bytes) -> tuple[int, bytes]:
    """Return how many tokens the prompt shares with the parent's, and the bytes that follow. Both are int32 arrays."""
    low, high = 0, min(len(parent), len(prompt)) // ID_BYTES
    while low < high:  # Slices compare in C: halving beats walking.
        middle = (low + high + 1) // 2
        if parent[low * ID_BYTES : middle * ID_BYTES] == prompt[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low, prompt[low * ID_BYTES :]


def join_tokens(parent: bytes, shared: int, tail: bytes) -> bytes:
    """Undo `split_tokens`."""
    return parent[: shared * ID_BYTES] + tail


def split_messages(parent: Sequence[Any], messages: Sequence[Any]) -> tuple[int, bytes]:
    """Return how many messages are shared from the start, and the rest as a JSON list."""
    shared = 0
    for one, other in zip(parent, messages, strict=False):
        if dump_json(one) != dump_json(other):  # `==` would take 1, 1.0 and true for the same.
            break
        shared += 1
    return shared, dump_json(list(messages[shared:])).encode()


def join_messages(parent: Sequence[Any], shared: int, tail: bytes) -> list[Any]:
    """Undo `split_messages`."""
    return [*parent[:shared], *json.loads(tail)]


def extend_context(parent: Context, step: Step, *, with_messages: bool = True) -> tuple[Context, bytes, list[Any]]:
    """Return the step's own context, its prompt (int32) and its messages, given its parent's context."""
    prompt = join_tokens(parent.token_ids, step.shared_tokens, bytes(step.tail_token_ids))
    messages: list[Any] = []
    answer: tuple[Any, ...] = ()
    if with_messages:
        messages = join_messages(parent.messages, step.shared_messages, bytes(step.tail_messages))
        answer = (json.loads(bytes(step.answer)),)
    own = Context(token_ids=prompt + bytes(step.completion_token_ids), messages=(*messages, *answer))
    return own, prompt, messages


_ANCESTORS = """
    WITH RECURSIVE line AS (
        SELECT * FROM trajectories_step WHERE id = %s
        UNION ALL
        SELECT step.* FROM trajectories_step step JOIN line ON step.id = line.parent_id
    )
    SELECT * FROM line ORDER BY index
"""


def load_context(step_id: str) -> Context:
    """Return what the step's children may share, from its line of ancestors alone."""
    context = Context()
    for step in Step.objects.raw(_ANCESTORS, [step_id]):
        context, _, _ = extend_context(context, step)
    return context


def load_messages(step_id: str) -> list[Any]:
    """Return the messages that went into the step."""
    return list(load_context(step_id).messages[:-1])


def load_steps(trajectory: Trajectory, *, with_messages: bool = True) -> list[StepView]:
    """Return all steps in order, whole, from one read."""
    return list(iterate_steps(trajectory, with_messages=with_messages))


def iterate_steps(
    trajectory: Trajectory, *, first: int = 0, limit: int | None = None, with_messages: bool = True
) -> Iterator[StepView]:
    """Yield the steps whose index is `first` or more, at most `limit`, whole. Parents stand before their children."""
    rows = Step.objects.filter(trajectory=trajectory).order_by("index")
    wanted = [step for step in rows if limit is None or step.index < first + limit]
    uses = [step.parent_id for step in wanted]
    last_use = {parent_id: place for place, parent_id in enumerate(uses) if parent_id}
    contexts: dict[str, Context] = {}
    for place, step in enumerate(wanted):
        parent = contexts[step.parent_id] if step.parent_id else Context()
        own, prompt, messages = extend_context(parent, step, with_messages=with_messages)
        if step.parent_id and last_use[step.parent_id] == place:
            del contexts[step.parent_id]
        if step.id in last_use:
            contexts[step.id] = own
        if step.index >= first:
            yield _view(step, prompt, messages)


def _view(step: Step, prompt: bytes, messages: list[Any]) -> StepView:
    return StepView(
        row=step,
        prompt_ids=unpack_ids(prompt),
        completion_ids=unpack_ids(bytes(step.completion_token_ids)),
        logprobs=unpack_logprobs(bytes(step.logprobs)),
        messages=messages,
        answer=json.loads(bytes(step.answer)),
    )


def store_tools(*, project_id: str, digest: str, tools_json: str) -> None:
    """Keep a list of tool definitions under its digest; it may be there already."""
    if digest:
        row = Tools(project_id=project_id, digest=digest, body=tools_json.encode())
        Tools.objects.bulk_create([row], ignore_conflicts=True)


def load_tools(*, project_id: str, digest: str) -> list[Any]:
    """Return the tool definitions that a step was offered."""
    if not digest:
        return []
    return list(json.loads(bytes(Tools.objects.get(project_id=project_id, digest=digest).body)))
