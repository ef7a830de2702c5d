"""Stems that were read before: of a conversation's calls many are cut by the same one, and it is long.

In memory only, and it changes nothing: a stem stays as it was written.
"""

from collections.abc import Sequence

from apps.trajectories.copying import read_rows
from apps.trajectories.least_used import LeastUsed
from apps.trajectories.models import Exchange, Stem
from apps.trajectories.stems import SHARED

MAX_BYTES = 32 * 1024 * 1024

_stems = LeastUsed[str, Stem](max_bytes=MAX_BYTES)


def read_stems(exchanges: Sequence[Exchange]) -> None:
    """Give the exchanges their stems; those that are not in memory are read in one go."""
    needed = {exchange.stem_id for exchange in exchanges if exchange.stem_id}
    known = {stem_id: stem for stem_id in needed if (stem := _stems.find(stem_id)) is not None}
    if unknown := needed - known.keys():
        for stem in read_rows(Stem.objects.filter(pk__in=unknown)):
            known[stem.id] = stem
            _stems.keep(stem.id, stem, n_bytes=sum(len(getattr(stem, name) or b"") for name in SHARED))
    for exchange in exchanges:
        if exchange.stem_id in known:
            exchange.stem = known[exchange.stem_id]
