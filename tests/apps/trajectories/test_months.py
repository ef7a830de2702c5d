"""The pool's months: made ahead, found by ids, and what belongs to none."""

from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from apps.core.ids import first_id
from apps.feedback.models import Label
from apps.trajectories.folded_choices import is_folded_twice, note_choices
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.months import (
    CALLS,
    OTHER,
    STEPS,
    TABLES,
    Table,
    count_astray,
    drop_parts,
    list_parts,
    make_months,
    next_month,
)
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory
from worker.tasks.housekeep import keep_months

AHEAD = timezone.now() + timedelta(days=100)
AFTER = next_month(AHEAD)
FAR = timezone.now() + timedelta(days=300)  # no month is made for it


def parts_of(table: Table) -> dict[str, int]:
    """Return how many rows each part has, if any."""
    counts = {}
    with connection.cursor() as cursor:
        for part in list_parts(table):
            cursor.execute(f"SELECT count(*) FROM {part.name}")  # noqa: S608
            counts[part.name.removeprefix(f"{table.name}_")] = cursor.fetchone()[0]
    return {name: n for name, n in counts.items() if n}


def make_trajectory(moment: datetime) -> Trajectory:
    """Make a trajectory of the moment with two steps and a label."""
    trajectory = TrajectoryFactory.create(id=first_id("traj", moment))
    root = StepFactory.create(trajectory=trajectory, index=0)
    leaf = StepFactory.create(trajectory=trajectory, index=1, parent=root)
    Label.objects.create(project=trajectory.project, trajectory=trajectory, step=leaf, value=1, source="human")
    return trajectory


def test_months_are_made_ahead_and_once(made_months: None) -> None:
    assert make_months(ahead=6) == []
    for table in TABLES:
        parts = list_parts(table)
        assert len(parts) >= 6
        bounds = [part.until for part in parts if part.until is not None]
        assert bounds[1:] == [next_month(bound) for bound in bounds[:-1]]  # no gap
        assert parts[-1].name == f"{table.name}_{OTHER}"
        assert bounds[-1] > timezone.now() + timedelta(days=6 * 30)


def test_what_belongs_to_no_month_is_counted_and_moved_when_its_month_is_made(
    made_months: None, caplog: pytest.LogCaptureFixture
) -> None:
    trajectory = make_trajectory(FAR)
    ExchangeFactory.create(id=first_id("exch", FAR))

    keep_months()
    assert count_astray() == {STEPS.name: 2, CALLS.name: 1}
    assert "months.astray" in caplog.text

    make_months(now=FAR)
    assert count_astray() == {}
    assert parts_of(STEPS) == {f"{FAR:%Y_%m}": 2}
    assert parts_of(CALLS) == {f"{FAR:%Y_%m}": 1}
    with pytest.raises(IntegrityError, match="label_has_a_step"):  # the keys hold as before
        trajectory.steps.filter(index=1)._raw_delete("default")


def test_a_trajectorys_steps_are_looked_for_in_its_month_alone(made_months: None) -> None:
    trajectory = make_trajectory(AHEAD)

    plan = Step.objects.filter(trajectory=trajectory).explain()
    assert f"trajectories_step_{AHEAD:%Y_%m}" in plan
    assert plan.count("trajectories_step_") == plan.count(f"trajectories_step_{AHEAD:%Y_%m}")


def test_a_label_of_another_trajectorys_step_is_refused(made_months: None) -> None:
    trajectory, other = make_trajectory(AHEAD), TrajectoryFactory.create()

    with pytest.raises(IntegrityError, match="label_has_a_step"):
        Label.objects.create(
            project=other.project, trajectory=other, step=trajectory.steps.all()[0], value=1, source="human"
        )


def test_a_step_has_its_parent_in_its_own_trajectory(made_months: None) -> None:
    parent = StepFactory.create()

    with pytest.raises(IntegrityError, match="step_has_a_parent"):
        StepFactory.create(parent=parent)


def test_a_choice_becomes_a_step_once(db: None) -> None:
    exchange = ExchangeFactory.create()
    note_choices({exchange.id: [0, 2]})
    note_choices({exchange.id: [1]})

    with pytest.raises(IntegrityError) as refused, transaction.atomic():
        note_choices({exchange.id: [2]})
    assert is_folded_twice(refused.value)
    assert Exchange.objects.get().folded_choices == [0, 2, 1]


def test_parts_that_are_gone_leave_no_gap(made_months: None) -> None:
    ExchangeFactory.create(id=first_id("exch", AHEAD))
    kept = ExchangeFactory.create(id=first_id("exch", AFTER))

    with transaction.atomic():
        drop_parts(CALLS, before=AFTER)
    assert list(Exchange.objects.all()) == [kept]
    assert list_parts(CALLS)[0].until == AFTER
    late = ExchangeFactory.create()
    assert parts_of(CALLS) == {"start": 1, f"{AFTER:%Y_%m}": 1}
    assert Exchange.objects.get(pk=late.pk) == late
