"""Keyset paging."""

import pytest

from apps.core.errors import InvalidInput
from apps.core.paging import page_newest_first
from apps.trajectories.models import Trajectory
from tests.factories.accounts import AgentFactory
from tests.factories.trajectories import TrajectoryFactory


@pytest.mark.django_db
def test_pages_join_without_gap_or_overlap() -> None:
    agent = AgentFactory.create()
    made = [TrajectoryFactory.create(agent=agent).id for _ in range(7)]
    seen: list[str] = []
    before: str | None = None
    while True:
        page = page_newest_first(Trajectory.objects.all(), before=before, limit=3)
        seen += [trajectory.id for trajectory in page.items]
        before = page.next_before
        if before is None:
            break
    assert seen == made[::-1]


@pytest.mark.parametrize("before", ["x", "'", "-1", "traj_", "a\x00"])
def test_a_place_that_no_page_ended_at_is_refused(before: str) -> None:
    with pytest.raises(InvalidInput, match="next_before"):
        page_newest_first(Trajectory.objects.all(), before=before, limit=3)


@pytest.mark.django_db
def test_a_full_last_page_has_no_next() -> None:
    TrajectoryFactory.create_batch(2, agent=AgentFactory.create())
    assert page_newest_first(Trajectory.objects.all(), before=None, limit=2).next_before is None
