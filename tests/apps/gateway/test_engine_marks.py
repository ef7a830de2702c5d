"""An engine that could not be reached is left alone, tried by one, and trusted again."""

from types import SimpleNamespace

import pytest

from apps.gateway import engine_marks
from apps.gateway.engine_marks import FIRST_REST_S, LONGEST_REST_S, EngineMarks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(engine_marks, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_after_its_rest_one_call_finds_out(clock: SimpleNamespace) -> None:
    marks = EngineMarks()
    assert marks.is_usable("a")
    marks.note_unreachable("a", reason="refused")
    assert not marks.is_usable("a")
    assert (marks.reason("a"), marks.reason("b")) == ("refused", "")

    clock.now += FIRST_REST_S
    assert marks.is_usable("a")
    marks.note_sent("a")
    assert not marks.is_usable("a")  # half open: the one that was sent is finding out

    assert marks.note_reached("a")
    assert marks.is_usable("a")
    assert not marks.note_reached("a")  # no news


def test_each_failure_in_a_row_doubles_the_rest(clock: SimpleNamespace) -> None:
    marks = EngineMarks()
    rests = []
    for _ in range(7):
        marks.note_sent("a")
        marks.note_unreachable("a", reason="refused")
        began = clock.now
        while not marks.is_usable("a"):
            clock.now += 0.125
        rests.append(clock.now - began)
    assert rests == [0.25, 0.5, 1.0, 2.0, 4.0, LONGEST_REST_S, LONGEST_REST_S]


def test_a_call_that_ends_without_an_answer_leaves_the_finding_out_to_the_next(clock: SimpleNamespace) -> None:
    marks = EngineMarks()
    marks.note_unreachable("a", reason="refused")
    clock.now += FIRST_REST_S
    marks.note_sent("a")
    marks.note_unknown("a")
    assert marks.is_usable("a")
