"""Long texts of the ledger, packed before they are written: two fifths of the bytes, and of Postgres' time.

A packed text begins as every Zstandard frame does. No JSON does; a text that did so all the same would be packed too,
so that what begins like a frame is one. Knows no columns.
"""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import zstandard
from django.db import models

SHORTEST = 8192  # bytes: a shorter one is not worth the work
_MARK = zstandard.FRAME_HEADER
_LEVEL = 1
_MANY_BYTES = 256 * 1024  # so much takes half a millisecond: the event loop has better things to do


class _Own(threading.local):
    """A thread's own: each of them serves one thread at a time."""

    def __init__(self) -> None:
        self.compressor: Any = zstandard.ZstdCompressor(level=_LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_own = _Own()


async def pack_all(texts: Sequence[bytes]) -> list[bytes]:
    """Return the texts as they are stored, in their order."""
    places = [place for place, text in enumerate(texts) if len(text) >= SHORTEST or text.startswith(_MARK)]
    found = list(texts)
    if places:
        long = [texts[place] for place in places]
        is_much = len(long) > 1 and sum(map(len, long)) >= _MANY_BYTES
        packed = await asyncio.to_thread(_pack, long) if is_much else _pack(long)
        for place, text in zip(places, packed, strict=True):
            found[place] = text
    return found


def _pack(texts: list[bytes]) -> list[bytes]:
    if len(texts) == 1:
        return [_own.compressor.compress(texts[0])]
    # All in one go: each piece that gave the interpreter away would have to wait to get it back.
    return [segment.tobytes() for segment in _own.compressor.multi_compress_to_buffer(texts)]


def unpack(stored: bytes) -> bytes:
    """Return the text as it was; raises zstandard.ZstdError for one that is damaged."""
    return _own.decompressor.decompress(stored) if stored.startswith(_MARK) else stored


class PackedField(models.BinaryField[Any, Any]):
    """Bytes that `exchange_log` may have packed; read, they are as they were. The database knows no difference."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.BinaryField", args, kwargs

    def from_db_value(self, value: bytes | memoryview | None, *_context: Any) -> bytes | None:
        return None if value is None else unpack(bytes(value))
