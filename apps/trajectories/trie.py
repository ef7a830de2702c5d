"""The token trie: a step's prompt is what it shares with its parent's prompt + completion, then a tail of its own.

Branch points may be anywhere: a client that takes a message out again makes a branch inside the parent's prompt. What
goes in comes out again byte for byte. Messages are kept in the same way. Knows no tokenizer and no dialect.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db.models import prefetch_related_objects

from apps.core.contracts.arrays import ID_BYTES, unpack_ids, unpack_logprobs
from apps.trajectories.messages import dump_json
from apps.trajectories.models import Step, Tools, Trajectory

_CHUNK = 100  # steps in memory at once; a message may have megabytes


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a step had seen and said: the tokens (int32) and messages that a child may share; and what else tells how
    a child goes on from it."""

    prompt: bytes = b""
    completion: bytes = b""
    messages: tuple[Any, ...] = ()
    tools_digest: str = ""
    epoch: int | None = None

    @property
    def token_ids(self) -> bytes:
        """The prompt's and the completion's, together (a copy: prompts are long)."""
        return self.prompt + self.completion

    @property
    def n_prompt_tokens(self) -> int:
        return len(self.prompt) // ID_BYTES

    @property
    def n_tokens(self) -> int:
        return self.n_prompt_tokens + len(self.completion) // ID_BYTES

    @cached_property
    def spelled(self) -> tuple[str, ...]:
        """Each message as JSON: values that are equal and spelled differently (1, 1.0, true) are kept apart."""
        return tuple(map(dump_json, self.messages))


@dataclass(frozen=True, kw_only=True)
class StepView:
    """A step, whole: `prompt` (int32) and `messages` went in, `answer` came out."""

    row: Step
    prompt: bytes
    messages: list[Any]

    @cached_property
    def prompt_ids(self) -> list[int]:
        return unpack_ids(self.prompt)

    @cached_property
    def completion_ids(self) -> list[int]:
        return unpack_ids(bytes(self.row.completion_token_ids))

    @cached_property
    def logprobs(self) -> list[float]:
        """In nats, one for each of `completion_ids`; none when they are not known."""
        return unpack_logprobs(bytes(self.row.logprobs))

    @cached_property
    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(bytes(self.row.answer))
        return answer


def split_tokens(parent: bytes, prompt: bytes) -> tuple[int, bytes]:
    """Return how many tokens the prompt shares with the parent's, and the bytes that follow. Both are int32 arrays."""
    if prompt.startswith(parent):
        return len(parent) // ID_BYTES, prompt[len(parent) :]
    low, high = 0, min(len(parent), len(prompt)) // ID_BYTES
    while low < high:  # Slices compare in C: halving beats walking.
        middle = (low + high + 1) // 2
        if parent[low * ID_BYTES : middle * ID_BYTES] == prompt[low * ID_BYTES : middle * ID_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low, prompt[low * ID_BYTES :]


def split_prompt(parent: Context, prompt: bytes) -> tuple[int, bytes]:
    """Return `split_tokens` of the context's tokens, which most prompts go on from as they are."""
    n_asked = len(parent.prompt)
    if prompt.startswith(parent.prompt) and prompt.startswith(parent.completion, n_asked):
        return parent.n_tokens, prompt[n_asked + len(parent.completion) :]
    return split_tokens(parent.token_ids, prompt)


def join_tokens(parent: bytes, shared: int, tail: bytes) -> bytes:
    """Undo `split_tokens`."""
    return parent[: shared * ID_BYTES] + tail


def count_shared(parent: Sequence[str], messages: Sequence[str]) -> int:
    """Return how many messages, each spelled as JSON, both begin with."""
    if messages[: len(parent)] == parent:  # as most do
        return len(parent)
    shared = 0
    for one, other in zip(parent, messages, strict=False):
        if one != other:
            break
        shared += 1
    return shared


def split_spelled(parent: Sequence[str], messages: Sequence[str]) -> tuple[int, bytes]:
    """Return how many messages, each spelled as JSON, are shared from the start, and the rest as a JSON list."""
    shared = count_shared(parent, messages)
    return shared, f"[{','.join(messages[shared:])}]".encode()


def join_messages(parent: Sequence[Any], shared: int, tail: bytes) -> list[Any]:
    """Undo `split_spelled`."""
    return [*parent[:shared], *json.loads(tail)]


def read_opening(step: Step) -> Context:
    """Return what a root shares its beginning with: its opening, or nothing."""
    if step.opening is None:
        return Context()
    messages = tuple(json.loads(bytes(step.opening.messages)))
    return Context(prompt=bytes(step.opening.token_ids), messages=messages)


def read_new_messages(step: Step) -> list[Any]:
    """Return the messages that the step's parent had not seen: of a root, all of them."""
    shared = read_opening(step).messages[: step.shared_messages] if step.opening_id else ()
    return [*shared, *json.loads(bytes(step.tail_messages))]


def extend_context(parent: Context, step: Step, *, with_messages: bool = True) -> tuple[Context, bytes, list[Any]]:
    """Return the step's own context, its prompt (int32) and its messages, given its parent's context."""
    prompt = join_tokens(parent.token_ids, step.shared_tokens, bytes(step.tail_token_ids))
    messages: list[Any] = []
    answer: tuple[Any, ...] = ()
    if with_messages:
        messages = join_messages(parent.messages, step.shared_messages, bytes(step.tail_messages))
        answer = (json.loads(bytes(step.answer)),)
    return _context_of(step, prompt=prompt, messages=(*messages, *answer)), prompt, messages


def _context_of(step: Step, *, prompt: bytes, messages: tuple[Any, ...]) -> Context:
    return Context(
        prompt=prompt,
        completion=bytes(step.completion_token_ids),
        messages=messages,
        tools_digest=step.tools_digest,
        epoch=step.epoch,
    )


_LINES = """
    WITH RECURSIVE line AS (
        SELECT id, parent_id, trajectory_id FROM trajectories_step WHERE id = ANY(%s)
        UNION
        SELECT step.id, step.parent_id, step.trajectory_id FROM trajectories_step step
        JOIN line ON step.id = line.parent_id AND step.trajectory_id = line.trajectory_id
    )
    SELECT step.id, step.trajectory_id, step.parent_id, step.opening_id, step.tools_digest, step.epoch,
        step.shared_tokens, step.tail_token_ids, step.completion_token_ids,
        step.shared_messages, step.tail_messages, step.answer
    FROM trajectories_step step JOIN line USING (id, trajectory_id)
"""


def load_contexts(step_ids: Iterable[str]) -> dict[str, Context]:
    """Return what the steps' children may share, from their lines of ancestors alone, in one read."""
    wanted = list(step_ids)
    if not wanted:
        return {}
    steps = {step.id: step for step in Step.objects.raw(_LINES, [wanted])}
    prefetch_related_objects([step for step in steps.values() if step.opening_id], "opening")
    return {step_id: _join_line(steps[step_id], steps) for step_id in wanted if step_id in steps}


def load_context(step_id: str) -> Context:
    """Return the same for one step; nothing when there is no such step."""
    return load_contexts([step_id]).get(step_id, Context())


def _join_line(leaf: Step, steps: Mapping[str, Step]) -> Context:
    """Walk from the step to its root and take of each ancestor only what is still missing: no copy for each of them."""
    tokens, messages = list[bytes](), list[Sequence[Any]]()
    n_tokens = n_messages = sys.maxsize // ID_BYTES  # how much of the ancestor at hand is wanted
    at: Step | None = leaf
    while at is not None and (n_tokens or n_messages):
        if n_tokens > at.shared_tokens:
            own = bytes(at.tail_token_ids) + bytes(at.completion_token_ids)
            tokens.append(own[: (n_tokens - at.shared_tokens) * ID_BYTES])
            n_tokens = at.shared_tokens
        if n_messages > at.shared_messages:
            spoken = [*json.loads(bytes(at.tail_messages)), json.loads(bytes(at.answer))]
            messages.append(spoken[: n_messages - at.shared_messages])
            n_messages = at.shared_messages
        if at.parent_id is None:
            opening = read_opening(at)
            tokens.append(opening.token_ids[: n_tokens * ID_BYTES])
            messages.append(opening.messages[:n_messages])
        at = steps[at.parent_id] if at.parent_id else None
    token_ids = b"".join(reversed(tokens))
    said = tuple(one for part in reversed(messages) for one in part)
    return _context_of(leaf, prompt=token_ids[: len(token_ids) - len(bytes(leaf.completion_token_ids))], messages=said)


def load_messages(step_id: str) -> list[Any]:
    """Return the messages that went into the step."""
    return list(load_context(step_id).messages[:-1])


def load_steps(trajectory: Trajectory, *, with_messages: bool = True) -> list[StepView]:
    """Return all steps in order, whole."""
    return list(iterate_steps(trajectory, with_messages=with_messages))


def iterate_steps(
    trajectory: Trajectory, *, first: int = 0, limit: int | None = None, with_messages: bool = True
) -> Iterator[StepView]:
    """Yield the steps whose index is `first` or more, at most `limit`, whole. Parents stand before their children."""
    rows = Step.objects.filter(trajectory=trajectory, index__gte=first).order_by("index")
    found = list(rows.values_list("id", "parent_id", "index")[:limit])
    if not found:
        return
    own_ids = {step_id for step_id, _, _ in found}
    last_use = {parent_id: step_id for step_id, parent_id, _ in found if parent_id}
    contexts = load_contexts(parent_id for parent_id in last_use if parent_id not in own_ids)
    unread = ["answer_digests", *([] if with_messages else ["tail_messages"])]
    until = rows.filter(index__lte=found[-1][2]).select_related("opening").defer(*unread)
    for step in until.iterator(chunk_size=_CHUNK):
        parent = contexts[step.parent_id] if step.parent_id else read_opening(step)
        own, prompt, messages = extend_context(parent, step, with_messages=with_messages)
        if step.parent_id and last_use[step.parent_id] == step.id:
            del contexts[step.parent_id]
        if step.id in last_use:
            contexts[step.id] = own
        yield StepView(row=step, prompt=prompt, messages=messages)


def store_tools(spelled: Mapping[str, str], *, project_id: str) -> None:
    """Keep lists of tool definitions, as JSON, under their digests; they may be there already."""
    rows = [Tools(project_id=project_id, digest=digest, body=tools.encode()) for digest, tools in spelled.items()]
    Tools.objects.bulk_create(rows, ignore_conflicts=True)


def load_tools(*, project_id: str, digest: str) -> list[Any]:
    """Return the tool definitions that a step was offered."""
    if not digest:
        return []
    return list(json.loads(bytes(Tools.objects.get(project_id=project_id, digest=digest).body)))
