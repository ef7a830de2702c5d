"""Numbers of things in words."""

import pytest

from apps.core.counted import count_of


@pytest.mark.parametrize(
    ("n", "many", "words"),
    [
        (0, "", "0 items"),
        (1, "", "1 item"),
        (1234, "", "1,234 items"),
        (1, "more", "1 item"),
        (2, "more", "2 more"),
    ],
)
def test_one_is_one_and_all_else_is_many(n: int, many: str, words: str) -> None:
    assert count_of(n, "item", many) == words
