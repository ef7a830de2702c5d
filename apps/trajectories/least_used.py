"""A memory with a size: what was not used for longest is forgotten first. Knows nothing of what it keeps."""

import threading
from collections.abc import Hashable
from contextlib import suppress
from operator import itemgetter
from typing import Generic, TypeVar

from cachetools import LRUCache

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class LeastUsed(Generic[Name, Value]):
    """Values by name, up to `max_bytes` in all. Several threads may use it at once."""

    def __init__(self, *, max_bytes: int) -> None:
        self._kept: LRUCache[Name, tuple[Value, int]] = LRUCache(max_bytes, getsizeof=itemgetter(1))
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        return int(self._kept.currsize)

    def __contains__(self, name: Name) -> bool:
        return name in self._kept

    def find(self, name: Name) -> Value | None:
        """Return the value if it is remembered."""
        with self._lock:
            kept = self._kept.get(name)
            return kept[0] if kept else None

    def keep(self, name: Name, value: Value, *, n_bytes: int) -> None:
        """Remember the value, which takes about so many bytes, instead of the one of that name before."""
        with self._lock, suppress(ValueError):  # it would take more than all there is
            self._kept[name] = (value, n_bytes)
