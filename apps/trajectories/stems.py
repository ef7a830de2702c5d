"""What the calls of a conversation have in common: kept once, as a stem, and of each call what it says beyond it.

An agent's next request is the last one and a little more, in the client's words and in chat form and in tokens. Knows
bytes; the tables are `models.Stem` and `models.Exchange`, who writes them is `exchange_log`.
"""

import time
from dataclasses import dataclass, field
from datetime import timedelta
from struct import Struct
from typing import Any

from django.db.models.query_utils import DeferredAttribute

from apps.core.ids import first_id, new_id, read_time
from apps.trajectories.least_used import LeastUsed
from apps.trajectories.months import next_month
from apps.trajectories.packing import SHORTEST, PackedField, unpack

ASKED = ("request", "chat_request", "prompt_token_ids")
SHARED = (*ASKED, "response")  # columns of a stem and of a call alike; the answers of some dialects repeat the request
MOST_NEW = 0.25  # of the bytes that were asked; what says more that is new is kept whole, and is the next stem
MAX_BYTES = 32 * 1024 * 1024  # of texts in memory
LONGEST_USE = timedelta(hours=1)  # so long after it was made calls may come to share a stem, and nobody removes it
_MARK = b"cut\xff"  # no JSON begins so, nor do token ids: it would be a negative one
_HEAD = Struct("<4sII")  # the mark, how many bytes of the stem's start come before, how many of its end behind

Texts = tuple[bytes | None, ...]
"""What a call says in each of `SHARED`."""


@dataclass(slots=True)
class Stem:
    """Texts that other calls begin and end like. `until`: the first id of a call of the month after, with which it
    would not be let go of. `packed`: the texts as the call has them that it was made of, packed where that does so.
    """

    id: str
    texts: Texts
    until: str
    made_at: float  # time.monotonic()
    is_written: bool = False
    packed: Texts | None = None

    def may_serve(self, exchange_id: str) -> bool:
        """Whether it will be there for as long as the call is."""
        return exchange_id < self.until and time.monotonic() - self.made_at < LONGEST_USE.total_seconds()


@dataclass(frozen=True, slots=True)
class Cut:
    """A call's texts less what they share with a stem: `heads` say where the stem's words belong, `rests` are new."""

    stem: Stem
    heads: tuple[bytes, ...]
    rests: Texts


@dataclass(slots=True)
class Stems:
    """The stems of one process's conversations, those used last."""

    _kept: LeastUsed[str, Stem] = field(default_factory=lambda: LeastUsed(max_bytes=MAX_BYTES))

    def cut(self, texts: Texts, *, exchange_id: str, conversation: str) -> Cut | Stem | None:
        """Return the call cut; when it is to be kept whole, the stem of its texts, by which those that follow are cut;
        None for a short one.
        """
        n_asked = _count_asked(texts)
        if n_asked < SHORTEST:
            return None
        stem = self._kept.find(conversation)
        if stem is not None and stem.may_serve(exchange_id):
            cut = _cut_all(texts, stem)
            if _count_asked(cut.rests) <= MOST_NEW * n_asked:
                return cut
        stem = make_stem(texts)
        n_bytes = sum(len(text or b"") for text in texts)
        self._kept.keep(conversation, stem, n_bytes=n_bytes + n_bytes // 2)  # and packed
        return stem


def _count_asked(texts: Texts) -> int:
    return sum(len(text or b"") for text in texts[: len(ASKED)])


def make_stem(texts: Texts) -> Stem:
    """Return a stem that is not written yet."""
    stem_id = new_id("stem")
    return Stem(stem_id, texts, first_id("exch", next_month(read_time(stem_id))), time.monotonic())


def _cut_all(texts: Texts, stem: Stem) -> Cut:
    pairs = [_cut(text, of or b"") for text, of in zip(texts, stem.texts, strict=True)]
    return Cut(stem, tuple(head for head, _ in pairs), tuple(rest for _, rest in pairs))


def _cut(text: bytes | None, stem: bytes) -> tuple[bytes, bytes | None]:
    if text is None:
        return b"", None
    most = min(len(text), len(stem))
    n_start = _count_same(text, stem, most)
    n_end = _count_same_at_end(text, stem, most - n_start)
    return _HEAD.pack(_MARK, n_start, n_end), text[n_start : len(text) - n_end]


def _count_same(one: bytes, two: bytes, most: int) -> int:
    """Return how many bytes both begin with, up to `most`. Slices compare in C, uncopied: halving beats walking."""
    view, low, high = memoryview(two), 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(view[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _count_same_at_end(one: bytes, two: bytes, most: int) -> int:
    """Return how many bytes both end with, up to `most`."""
    view, low, high = memoryview(two), 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if one.endswith(view[len(two) - middle : len(two) - low], 0, len(one) - low):
            low = middle
        else:
            high = middle - 1
    return low


def is_cut(kept: bytes) -> bool:
    """Whether the column's value lacks what a stem has."""
    return kept.startswith(_MARK)


def join(kept: bytes, stem: bytes | None) -> bytes:
    """Return the text of a value that is cut."""
    _, n_start, n_end = _HEAD.unpack_from(kept)
    text = memoryview(stem or b"")
    return b"".join((text[:n_start], unpack(kept[_HEAD.size :]), text[len(text) - n_end :]))


class _Joined(DeferredAttribute):
    """Gives an exchange's text whole, asking for its stem when it has not been read yet."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        values, name = instance.__dict__, self.field.attname
        value = values[name] if name in values else super().__get__(instance, owner)
        if value is not None and instance.stem_id and is_cut(value):
            value = values[name] = join(value, getattr(instance.stem, name))
        return value

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.field.attname] = value


class SharedField(PackedField):
    """Bytes that may lack what the row's stem has: as an attribute they are whole, in `values()` they are as kept."""

    descriptor_class = _Joined
