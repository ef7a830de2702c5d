"""Krippendorff's alpha, with the numbers of his own paper and with some worked by hand."""

import pytest

from apps.feedback.queues.agreement import Level, Unit, find_alpha

# Krippendorff (2011), section C: four observers, twelve units, missing values.
PAPER = {
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "C": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}


def units_of(table: dict[str, list[int | None]]) -> list[Unit]:
    n_units = len(next(iter(table.values())))
    return [{who: row[u] for who, row in table.items() if row[u] is not None} for u in range(n_units)]


@pytest.mark.parametrize(("level", "alpha"), [(Level.NOMINAL, 0.743), (Level.ORDINAL, 0.815), (Level.INTERVAL, 0.849)])
def test_it_gives_the_papers_numbers(level: Level, alpha: float) -> None:
    assert find_alpha(units_of(PAPER), level=level) == pytest.approx(alpha, abs=0.0005)


def test_two_people_by_hand() -> None:
    # Values: yes yes, yes no, no no. n = 6 (3 yes, 3 no). D_o = 2/6; D_e = 2*3*3/(6*5) = 0.6; alpha = 1 - 0.5556.
    units = [{"a": True, "b": True}, {"a": True, "b": False}, {"a": False, "b": False}]
    assert find_alpha(units, level=Level.NOMINAL) == pytest.approx(4 / 9)


def test_of_one_person_only_their_pairs_count() -> None:
    # c alone is different: pairs of a: one of two units' two pairs differ; D_e of values 1 1 2 / 3 3 4: by hand.
    units = [{"a": 1, "b": 1, "c": 2}, {"a": 3, "b": 3, "c": 4}]
    everyone = find_alpha(units, level=Level.NOMINAL)
    by_person = {who: find_alpha(units, level=Level.NOMINAL, of=who) for who in "abc"}
    # n = 6, counts 2 1 2 1: ordered pairs that differ 36 - 10 = 26; D_e = 26 / 30.
    assert everyone == pytest.approx(1 - (8 / 12) / (26 / 30))
    assert by_person["c"] == pytest.approx(1 - 1 / (26 / 30))
    assert by_person["a"] == by_person["b"] == pytest.approx(1 - 0.5 / (26 / 30))


@pytest.mark.parametrize("units", [[], [{"a": 1}], [{"a": 1, "b": 1}], [{"a": 1}, {"b": 2}]])
def test_where_nothing_can_be_compared_there_is_no_number(units: list[Unit]) -> None:
    assert find_alpha(units, level=Level.NOMINAL) is None
