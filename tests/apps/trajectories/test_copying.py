"""Rows written by COPY are what `bulk_create` would have written."""

import pytest
from django.db import DataError, IntegrityError, transaction

from apps.trajectories.copying import copy_rows, make_row
from apps.trajectories.models import PrefixBreak, SideCall, Step, Trajectory, new_step_id, new_trajectory_id
from tests.factories.trajectories import StepFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def step() -> Step:
    """A step with a value in every column that is not the default."""
    return StepFactory.create(
        metadata={"ü": [1, None, 'a"\\']},
        answer_digests=["a" * 32, "b,{}"],
        side_call=SideCall.TITLE,
        prefix_break=PrefixBreak.EDIT,
        epoch=3,
        top_k=-1,
        temperature=0.3,
        reward=None,
        tail_messages=b'["\x00\xff"]',
    )


def read(row: Step | Trajectory) -> dict[str, object]:
    fresh = type(row).objects.get(pk=row.pk)
    values = {field.attname: getattr(fresh, field.attname) for field in fresh._meta.concrete_fields}
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()}


def test_rows_come_back_as_bulk_create_would_have_written_them(step: Step) -> None:
    expected, trajectory = read(step), step.trajectory
    twin = Trajectory.objects.get(pk=trajectory.pk)
    twin.pk, twin.session_key, twin.metadata = new_trajectory_id(), "süß", {"a": {}}
    copy = Step.objects.get(pk=step.pk)
    copy.pk, copy.trajectory = new_step_id(), twin

    copy_rows([twin])
    copy_rows([copy])

    assert read(copy) == expected | {"id": copy.pk, "trajectory_id": twin.pk}
    assert read(twin) == read(trajectory) | {"id": twin.pk, "session_key": "süß", "metadata": {"a": {}}}
    copy.save()  # it knows that it is there


def test_a_row_is_made_as_its_model_makes_it(step: Step) -> None:
    given = {"trajectory_id": step.trajectory_id, "index": 1, "is_exact": False, "epoch": 2}
    made, expected = make_row(Step, **given), Step(**given)

    assert vars(made).keys() == vars(expected).keys()
    assert {**vars(made), "_state": None, "id": ""} == {**vars(expected), "_state": None, "id": ""}
    assert made.id.startswith("step_")
    assert made.metadata is not make_row(Step, **given).metadata
    assert made.trajectory == step.trajectory
    with pytest.raises(TypeError, match="no such columns"):
        make_row(Step, trajectory=step.trajectory)


def test_no_rows_are_no_work() -> None:
    copy_rows([])


def test_of_rows_that_are_refused_none_is_there(step: Step) -> None:
    new = Step.objects.get(pk=step.pk)
    new.pk, new.index = new_step_id(), 7
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        copy_rows([new, step])
    assert caught.value.__cause__ is not None
    new.finish_reason = "x" * 31
    with pytest.raises(DataError), transaction.atomic():
        copy_rows([new])
    assert not Step.objects.filter(pk=new.pk).exists()
