"""Ids: prefixed, sortable, recognised."""

from datetime import UTC, datetime, timedelta

import pytest

from apps.core.ids import ID_MAX_LENGTH, first_id, is_id, new_id, read_time


def test_later_ids_sort_later() -> None:
    ids = [new_id("traj") for _ in range(1000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 1000


def test_an_id_is_short_enough_for_its_column() -> None:
    assert len(new_id("trajs")) <= ID_MAX_LENGTH


def test_an_id_is_recognised_by_its_prefix() -> None:
    assert is_id(new_id("step"), "step")
    assert not is_id(new_id("step"), "traj")


@pytest.mark.parametrize(
    "value", ["", "step_", "step_x", "STEP_" + "0" * 26, "step_" + "u" * 26, "step_" + "0" * 27, "\x00"]
)
def test_other_text_is_none(value: str) -> None:
    assert not is_id(value, "step")


def test_a_moments_first_id_parts_those_made_before_from_those_made_since() -> None:
    before, moment, since = new_id("traj"), datetime.now(UTC) + timedelta(milliseconds=1), ""
    while datetime.now(UTC) < moment + timedelta(milliseconds=1):
        since = new_id("traj")
    bound = first_id("traj", moment)
    assert before < bound < new_id("traj")
    assert is_id(bound, "traj")
    assert abs(read_time(since) - moment) < timedelta(seconds=1)
