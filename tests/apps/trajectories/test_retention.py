"""Letting go of old months: raw calls alone, or everything."""

from datetime import timedelta

import pytest
import time_machine
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.models import AuditEvent
from apps.core.errors import Conflict
from apps.core.ids import first_id
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.trajectories import months
from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.retention import drop_calls, drop_trajectories
from apps.trajectories.unassigned import UnassignedCall
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory
from worker.tasks.housekeep import keep_months

NEXT = months.next_month(timezone.now() + timedelta(days=70))  # behind the part that the migration made
OLD = first_id("traj", NEXT - timedelta(days=3))


@pytest.fixture
def old(made_months: None) -> Trajectory:
    """A complete trajectory from before NEXT, with a step, a label and a raw call."""
    trajectory = TrajectoryFactory.create(id=OLD, state="complete")
    step = StepFactory.create(trajectory=trajectory)
    Label.objects.create(project=trajectory.project, trajectory=trajectory, step=step, value=1, source="human")
    ExchangeFactory.create(id=first_id("exch", NEXT - timedelta(days=3)), folded_at=NEXT)
    return trajectory


def test_raw_calls_go_and_steps_stay(old: Trajectory) -> None:
    call = Exchange.objects.get()
    UnassignedCall.objects.create(exchange_id=call.pk, project_id=call.project_id)
    young = ExchangeFactory.create(id=first_id("exch", NEXT), folded_at=NEXT)

    drop_calls(before=NEXT)

    assert list(Exchange.objects.all()) == [young]
    assert not UnassignedCall.objects.exists()
    assert Step.objects.count() == 1
    assert AuditEvent.objects.filter(action="calls.dropped", object_id=old.project_id).exists()


def test_calls_that_wait_for_the_recorder_are_never_dropped(old: Trajectory) -> None:
    Exchange.objects.update(folded_at=None)

    with pytest.raises(Conflict, match="wait for the recorder"):
        drop_calls(before=NEXT)
    assert Exchange.objects.count() == 1


def test_housekeeping_drops_what_is_older_than_was_set(old: Trajectory, settings: Settings) -> None:
    young = ExchangeFactory.create(id=first_id("exch", NEXT), folded_at=NEXT)
    with time_machine.travel(NEXT + timedelta(days=40), tick=False):
        keep_months()
        assert Exchange.objects.count() == 2  # nothing is set
        settings.CLAW = settings.CLAW.model_copy(update={"keep_calls_months": 1})
        Exchange.objects.exclude(pk=young.pk).update(folded_at=None)
        keep_months()
        assert Exchange.objects.count() == 2  # one waits for the recorder
        Exchange.objects.update(folded_at=NEXT)
        for _ in range(2):
            keep_months()
    assert list(Exchange.objects.all()) == [young]
    assert Step.objects.count() == 1
    assert AuditEvent.objects.filter(action="calls.dropped", object_id=old.project_id).count() == 1


def test_trajectories_go_with_all_of_theirs_and_later_ones_stay(old: Trajectory) -> None:
    young = TrajectoryFactory.create(id=first_id("traj", NEXT), parent=old)
    step = StepFactory.create(trajectory=young)
    Preference.objects.create(
        project=young.project,
        kind=PreferenceKind.COMPARISON,
        trajectory=young,
        step=step,
        chosen_step=step,
        rejected_step=old.steps.get(),
        source=Source.HUMAN,
    )

    drop_trajectories(before=NEXT)

    assert list(Trajectory.objects.values_list("id", "parent")) == [(young.pk, None)]
    assert list(Step.objects.all()) == [step]
    assert not Label.objects.exists()
    assert not Preference.objects.exists()


def test_an_open_trajectory_is_not_dropped(old: Trajectory) -> None:
    Trajectory.objects.update(state="open")

    with pytest.raises(Conflict, match="still open"):
        drop_trajectories(before=NEXT)
    assert Step.objects.count() == 1


def test_what_is_in_a_dataset_is_dropped_when_that_is_said(old: Trajectory) -> None:
    dataset = Dataset.objects.create(project=old.project, name="kept", created_by="me")
    DatasetMember.objects.create(dataset=dataset, trajectory=old, added_how=AddedBy.HAND, added_by="me")

    with pytest.raises(Conflict, match="dataset 'kept'"):
        drop_trajectories(before=NEXT)
    drop_trajectories(before=NEXT, even_in_datasets=True)
    assert not Trajectory.objects.exists()


def test_the_command_lists_and_does_nothing_unless_told(
    old: Trajectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: NEXT + timedelta(days=400))
    call_command("months")
    assert "trajectories_step_start" in capsys.readouterr().out

    call_command("months", "--drop", "all")
    assert "add --yes" in capsys.readouterr().out
    assert Step.objects.exists()

    call_command("months", "--drop", "all", "--yes")
    assert not Step.objects.exists()
    assert not Exchange.objects.exists()
    with pytest.raises(CommandError, match="1 or more"):
        call_command("months", "--drop", "calls", "--keep", "0", "--yes")
