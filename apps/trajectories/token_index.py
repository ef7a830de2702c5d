"""Finds which step a prompt goes on from by tokens alone, for steps without messages to tell it by.

Contexts (prompt + completion, int32) stand in sorted order: of all of them, a neighbour of the prompt shares the
longest prefix with it. Knows no tokenizer and writes nothing.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import Context, extend_context, read_opening, split_tokens

_READ = ("parent_id", "shared_tokens", "tail_token_ids", "completion_token_ids", "tools_digest", "epoch", "opening")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A step that others may go on from. `context` is its prompt and completion, int32."""

    step_id: str
    context: bytes
    prompt_bytes: int
    parent: "Node | None"


class TokenIndex:
    """The steps of one trajectory by their tokens."""

    def __init__(self) -> None:
        self._contexts: list[bytes] = []
        self._nodes: dict[bytes, Node] = {}
        self._by_step: dict[str, Node] = {}

    def add(self, step_id: str, *, prompt: bytes, completion: bytes, parent: Node | None) -> Node:
        """Let later prompts go on from this step. Of steps that say the same, the latest is gone on from."""
        node = Node(step_id=step_id, context=prompt + completion, prompt_bytes=len(prompt), parent=parent)
        if node.context not in self._nodes:
            insort(self._contexts, node.context)
        self._nodes[node.context] = self._by_step[step_id] = node
        return node

    def find_node(self, step_id: str) -> Node | None:
        """Return the step, None when its tokens are not known."""
        return self._by_step.get(step_id)

    def find_parent(self, prompt: bytes) -> Node | None:
        """Return the step with the longest common prefix; for a repeated prompt, what that step itself goes on from."""
        place = bisect_left(self._contexts, prompt)
        near = [self._nodes[context] for context in self._contexts[max(0, place - 1) : place + 1]]
        shared, node = max(
            ((split_tokens(node.context, prompt)[0], node) for node in near),
            key=lambda found: (found[0], found[1].step_id),
            default=(0, None),
        )
        if node is None or not shared:
            return None
        is_repeated = len(prompt) <= node.prompt_bytes and node.context.startswith(prompt)
        return node.parent if is_repeated else node


def load_token_index(trajectory: Trajectory) -> TokenIndex:
    """Return the index of all steps of the trajectory whose tokens are known, from one read."""
    index = TokenIndex()
    contexts: dict[str, Context] = {}
    rows = Step.objects.filter(trajectory=trajectory).select_related("opening").only(*_READ)
    for step in rows.order_by("index"):
        parent_id = step.parent_id or ""
        parent = contexts.get(parent_id, Context()) if parent_id else read_opening(step)
        own, prompt, _ = extend_context(parent, step, with_messages=False)
        contexts[step.id] = own
        if prompt:
            completion = bytes(step.completion_token_ids)
            index.add(step.id, prompt=prompt, completion=completion, parent=index.find_node(parent_id))
    return index
