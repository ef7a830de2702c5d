"""Work in a process of its own: what comes of it, and of what does not end."""

import os
import time
from collections.abc import Callable

import psutil
import pytest

from apps.feedback.graders import apart
from apps.feedback.graders.apart import ApartError, work_apart


def fail() -> float:
    raise ZeroDivisionError("half of \udc80 nothing")


def hang() -> float:
    return float(9**9**9 % 7)


def eat() -> float:
    return len(bytearray(2 * apart.MAX_BYTES))


def leave() -> float:
    os._exit(3)


def test_a_value_comes_back() -> None:
    assert [work_apart(lambda: 1 / 3, seconds=20), work_apart(lambda: True, seconds=20)] == [1 / 3, 1.0]


@pytest.mark.parametrize(
    ("work", "words"),
    [(fail, r"ZeroDivisionError: half of \? nothing"), (eat, "MemoryError"), (leave, "its process ended")],
)
def test_what_comes_to_no_value_says_why(work: Callable[[], float], words: str) -> None:
    with pytest.raises(ApartError, match=words):
        work_apart(work, seconds=20)


def test_what_does_not_end_is_ended() -> None:
    began, before = time.monotonic(), set(psutil.Process().children())
    with pytest.raises(ApartError, match=r"more than 0.3 s"):
        work_apart(hang, seconds=0.3)
    assert time.monotonic() - began < 10
    assert set(psutil.Process().children()) <= before


def test_nothing_is_left_here() -> None:
    here: list[int] = []
    work_apart(lambda: here.append(1) or 1.0, seconds=20)  # type: ignore[func-returns-value]
    assert here == []
