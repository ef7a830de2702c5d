"""A memory with a size: what was not used for longest is forgotten first. Knows nothing of what it keeps."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class LeastUsed(Generic[Name, Value]):
    """Values by name, up to `max_bytes` in all. Several threads may use it at once."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.n_bytes = 0
        self._kept: OrderedDict[Name, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, name: Name) -> bool:
        return name in self._kept

    def find(self, name: Name) -> Value | None:
        """Return the value if it is remembered."""
        with self._lock:
            if name not in self._kept:
                return None
            self._kept.move_to_end(name)
            return self._kept[name][0]

    def keep(self, name: Name, value: Value, *, n_bytes: int) -> None:
        """Remember the value, which takes about so many bytes, instead of the one of that name before."""
        with self._lock:
            _, freed = self._kept.pop(name, (None, 0))
            self.n_bytes -= freed
            if n_bytes > self.max_bytes:
                return
            self._kept[name] = (value, n_bytes)
            self.n_bytes += n_bytes
            while self.n_bytes > self.max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self.n_bytes -= freed
