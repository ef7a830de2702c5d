"""The database itself keeps labels, preferences and schemas as they were said."""

from collections.abc import Callable
from functools import partial

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import Model

from apps.accounts.access import Caller
from apps.accounts.models import Agent, User
from apps.feedback.models import Label, ScoreSchema
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_comparison, add_correction
from apps.feedback.preferences.sides import Side
from apps.feedback.schemas import add_schema
from apps.feedback.services import add_label
from apps.trajectories.models import Step, Trajectory
from tests.factories.feedback import LabelFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent)


@pytest.fixture
def step(trajectory: Trajectory) -> Step:
    return StepFactory.create(trajectory=trajectory)


def refuse(change: Callable[[], object]) -> None:
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        change()


def remove(*rows: Model) -> None:
    """Delete them by SQL, one after the other; the database looks at the end."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        for row in rows:
            cursor.execute(f"DELETE FROM {row._meta.db_table} WHERE id = %s", [row.pk])  # noqa: S608
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_fact_is_not_deleted_while_there_is_what_it_is_about(trajectory: Trajectory, step: Step, mate: User) -> None:
    caller, other = Caller(user=mate), StepFactory.create(trajectory__agent=trajectory.agent)
    of_whole = add_label(caller=caller, trajectory=trajectory, value=1)
    of_step = add_label(caller=caller, trajectory=trajectory, step=step, value=1)
    better = add_comparison(caller=caller, chosen=Side(step=step), rejected=Side(step=other))
    for fact in (of_whole, of_step, better):
        with pytest.raises(IntegrityError, match="never deleted"):
            remove(fact)
    remove(better, other)
    remove(of_step, step)
    remove(of_whole, trajectory)
    assert not Label.objects.exists()
    assert not Preference.objects.exists()


def test_what_a_label_says_cannot_be_changed(trajectory: Trajectory, step: Step) -> None:
    label = LabelFactory.create(trajectory=trajectory)
    rows = Label.objects.filter(pk=label.pk)
    for change in ({"value": 0}, {"text": "x"}, {"step": step}, {"source": "human"}, {"is_undo": True}):
        refuse(partial(rows.update, **change))
    rows.update(value=1.0)  # the same: nothing changes


def test_a_label_is_superseded_once(trajectory: Trajectory) -> None:
    first, second, third = (LabelFactory.create(trajectory=trajectory) for _ in range(3))
    rows = Label.objects.filter(pk=first.pk)
    rows.update(superseded_by=second)
    refuse(lambda: rows.update(superseded_by=third))
    refuse(lambda: rows.update(superseded_by=None))


def test_people_may_be_forgotten_and_trajectories_removed(trajectory: Trajectory, mate: User) -> None:
    for value in (1, 0):
        add_label(caller=Caller(user=mate), trajectory=trajectory, value=value)
    mate.delete()
    assert set(Label.objects.values_list("author", flat=True)) == {None}
    trajectory.delete()
    assert not Label.objects.exists()


def test_a_label_says_something_or_is_an_undo(trajectory: Trajectory) -> None:
    for columns in ({"value": None}, {"is_undo": True}, {"span_start": 0, "span_end": 2}):
        with pytest.raises(IntegrityError), transaction.atomic():
            LabelFactory.create(trajectory=trajectory, **columns)


def test_preferences_and_schemas_are_facts_too(trajectory: Trajectory, step: Step, trainer: User) -> None:
    add_correction(caller=Caller(user=trainer), step=step, message="better")
    refuse(lambda: Preference.objects.update(chosen_message={"role": "assistant", "content": "worse"}))
    add_schema(caller=Caller(user=trainer), project=trajectory.project, definition={})
    refuse(lambda: ScoreSchema.objects.update(definition={}))
