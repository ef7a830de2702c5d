"""Agreement, by hand."""

import pytest

from apps.feedback.graders.agreement import cohen_kappa, correlate, measure_agreement


def test_kappa_by_hand() -> None:
    """20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: p_o = 0.7, p_e = 0.5."""
    classes = [(1, 1)] * 20 + [(1, -1)] * 5 + [(-1, 1)] * 10 + [(-1, -1)] * 15
    assert cohen_kappa(classes) == pytest.approx(0.4)


def test_correlation_by_hand() -> None:
    assert correlate([(1, 1), (0, 0), (-1, -1)]) == 1
    assert correlate([(1, -1), (-1, 1)]) == -1
    assert correlate([(1, 2), (2, 1), (3, 3)]) == pytest.approx(0.5)


def test_what_is_not_defined_is_none() -> None:
    nothing = measure_agreement([])
    assert (nothing.n, nothing.kappa, nothing.correlation, nothing.mean_difference) == (0, None, None, None)
    always = measure_agreement([(1, 1), (1, 1)])
    assert (always.n_same, always.kappa, always.correlation, always.mean_difference) == (2, None, None, 0)


def test_the_measures_together() -> None:
    agreement = measure_agreement([(1, 0.5), (0.2, -1), (-1, -1), (0, 0)])
    assert (agreement.n, agreement.n_same) == (4, 3)
    assert agreement.mean_difference == pytest.approx(0.425)
