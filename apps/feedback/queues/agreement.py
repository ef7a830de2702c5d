"""Krippendorff's alpha: how far people agree beyond what chance would do. Pure.

K. Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): alpha = 1 - D_o / D_e, with the observed
disagreement D_o = 1/n sum over units of sum over ordered pairs of delta²(a, b) / (m_u - 1), where m_u values were given
for the unit and n values in units with two or more, and the expected D_e = 1/(n (n - 1)) sum over ordered pairs of all
values. 1: all agree; 0: as chance would; below: worse. (The package `krippendorff` is under the GPL.)
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate, permutations
from typing import Any

Delta = Callable[[Any, Any], float]  # squared difference
Unit = Mapping[str, Any]  # person → value


class Level(StrEnum):
    """What may be done with the values: told apart, put in order, subtracted."""

    NOMINAL = "nominal"
    ORDINAL = "ordinal"
    INTERVAL = "interval"


def find_alpha(units: Sequence[Unit], *, level: Level, of: str | None = None) -> float | None:
    """Return alpha over units; `of`: of one person with all others (only their pairs are observed, chance stays that of
    all). None when there is nothing to compare, or all values are the same, so that chance could not disagree."""
    paired = [unit for unit in units if len(unit) > 1]
    values = [value for unit in paired for value in unit.values()]
    delta = _find_delta(level, Counter(values))
    expected = _expect(Counter(values), delta)
    observed = _observe(paired, delta, of=of)
    if observed is None or not expected:
        return None
    return 1 - observed / expected


def _observe(units: Sequence[Unit], delta: Delta, *, of: str | None) -> float | None:
    """Return the mean disagreement of pairs, each unit weighing as many as it has values."""
    total, weight = 0.0, 0.0
    for unit in units:
        pairs = [(one, other) for one, other in permutations(unit, 2) if of is None or of in {one, other}]
        if not pairs:
            continue
        share = 1 / (len(unit) - 1)
        total += share * sum(delta(unit[one], unit[other]) for one, other in pairs)
        weight += share * len(pairs)
    return total / weight if weight else None


def _expect(counts: Counter[Hashable], delta: Delta) -> float:
    n = counts.total()
    if n < 2:
        return 0.0
    pairs = sum(counts[a] * counts[b] * delta(a, b) for a, b in permutations(counts, 2))
    return pairs / (n * (n - 1))


def _find_delta(level: Level, counts: Counter[Any]) -> Delta:
    if level == Level.NOMINAL:
        return lambda a, b: float(a != b)
    if level == Level.INTERVAL:
        return lambda a, b: float(a - b) ** 2
    places = sorted(counts)
    below = dict(zip(places, accumulate((counts[place] for place in places), initial=0), strict=False))

    def between(a: Any, b: Any) -> float:
        """Half of both ends and all that lies between, squared."""
        low, high = min(a, b), max(a, b)
        inside = below[high] + counts[high] - below[low]
        return float(inside - (counts[low] + counts[high]) / 2) ** 2 if a != b else 0.0

    return between
