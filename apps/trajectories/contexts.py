"""Contexts of steps, kept in memory: the next call of a conversation then need not read all the steps before it.

A step never changes what it saw and said, so what is here stays true; a step that was rolled back is never asked for.
"""

from collections.abc import Iterable

from apps.core.contracts.arrays import ID_BYTES
from apps.trajectories.least_used import LeastUsed
from apps.trajectories.trie import Context, load_context, load_contexts

MAX_BYTES = 64 * 1024 * 1024


class ContextCache:
    """The contexts last used, up to a number of bytes. Several threads may use it at once."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._kept = LeastUsed[str, Context](max_bytes=max_bytes)

    @property
    def n_bytes(self) -> int:
        return self._kept.n_bytes

    def find(self, step_id: str) -> Context:
        """Return the step's context, from memory or from the pool."""
        return self._kept.find(step_id) or load_context(step_id)

    def read_ahead(self, step_ids: Iterable[str]) -> None:
        """Read the contexts of steps that are not in memory, in one go."""
        for step_id, context in load_contexts(step_id for step_id in step_ids if not self.is_kept(step_id)).items():
            self.keep(step_id, context, n_bytes=context.n_tokens * ID_BYTES + 3 * sum(map(len, context.spelled)))

    def is_kept(self, step_id: str) -> bool:
        """Say whether the step's context is in memory."""
        return step_id in self._kept

    def keep(self, step_id: str, context: Context, *, n_bytes: int) -> None:
        """Remember the step's context, which takes about so many bytes; forget those that were not used for longest."""
        if step_id not in self._kept:
            self._kept.keep(step_id, context, n_bytes=n_bytes)
