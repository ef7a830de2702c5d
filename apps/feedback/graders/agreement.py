"""How far two judges of the same things agree: counts, Cohen's kappa, correlation. Pure.

Kappa: J. Cohen, A coefficient of agreement for nominal scales, 1960: (p_o - p_e) / (1 - p_e) over the classes below,
above and at zero. Correlation is Pearson's.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Pair = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of `n` things that both judged, `n_same` have the same sign. None where it is not defined: too few, or one of the
    two always says the same."""

    n: int
    n_same: int
    kappa: float | None
    correlation: float | None
    mean_difference: float | None
    """Of the first's values above the second's, on the scale -1 to 1."""


def measure_agreement(pairs: Sequence[Pair]) -> Agreement:
    """Return how far the first and the second value of each pair agree."""
    classes = [(_sign(one), _sign(other)) for one, other in pairs]
    return Agreement(
        n=len(pairs),
        n_same=sum(one == other for one, other in classes),
        kappa=cohen_kappa(classes),
        correlation=correlate(pairs),
        mean_difference=sum(one - other for one, other in pairs) / len(pairs) if pairs else None,
    )


def cohen_kappa(classes: Sequence[tuple[int, int]]) -> float | None:
    """Return Cohen's kappa; None without pairs, and where chance alone would agree always."""
    n = len(classes)
    if n == 0:
        return None
    observed = sum(one == other for one, other in classes) / n
    ones, others = Counter(one for one, _ in classes), Counter(other for _, other in classes)
    expected = sum(ones[name] * others[name] for name in ones) / n**2
    return None if expected == 1 else (observed - expected) / (1 - expected)


def correlate(pairs: Sequence[Pair]) -> float | None:
    """Return Pearson's correlation; None for fewer than two pairs, and where one side does not vary."""
    n = len(pairs)
    if n < 2:
        return None
    mean_one, mean_other = sum(one for one, _ in pairs) / n, sum(other for _, other in pairs) / n
    both = sum((one - mean_one) * (other - mean_other) for one, other in pairs)
    spread = math.sqrt(
        sum((one - mean_one) ** 2 for one, _ in pairs) * sum((other - mean_other) ** 2 for _, other in pairs)
    )
    return None if spread == 0 else max(-1.0, min(1.0, both / spread))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
