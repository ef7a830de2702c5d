"""A dataset that somebody deletes while another uses it: the one who comes too late is told that it is gone."""

from collections.abc import Callable
from threading import Thread

import pytest
from django.db import connections, transaction

from apps.accounts.access import Caller
from apps.core.errors import NotFound
from apps.trajectories.datasets import services
from apps.trajectories.datasets.exporting import start_export
from apps.trajectories.datasets.models import Dataset, DatasetMember, Export
from apps.trajectories.datasets.shapes import MESSAGES
from apps.trajectories.models import Trajectory

Use = Callable[[Dataset, Caller, Trajectory], object]

USES: dict[str, Use] = {
    "describe": lambda dataset, caller, _row: services.describe_dataset(
        dataset=dataset, caller=caller, name="other", description=None
    ),
    "delete": lambda dataset, caller, _row: services.delete_dataset(dataset=dataset, caller=caller),
    "add": lambda dataset, caller, row: services.add_ids_to_dataset(dataset=dataset, caller=caller, ids=[row.pk]),
    "remove": lambda dataset, caller, row: services.remove_from_dataset(dataset=dataset, caller=caller, ids=[row.pk]),
    "freeze": lambda dataset, caller, _row: services.take_snapshot(dataset=dataset, caller=caller),
    "export": lambda dataset, caller, _row: start_export(
        project=dataset.project, caller=caller, shape=MESSAGES, file_format="jsonl", dataset=dataset
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_who_comes_too_late_is_told_that_it_is_gone(
    dataset: Dataset, caller: Caller, trajectory: Trajectory, use: Use
) -> None:
    services.delete_dataset(dataset=Dataset.objects.get(pk=dataset.pk), caller=caller)
    with pytest.raises(NotFound, match="no dataset"):
        use(dataset, caller, trajectory)
    assert not DatasetMember.objects.exists()
    assert not Export.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_deletion_waits_for_an_addition_that_has_begun(
    dataset: Dataset, caller: Caller, trajectory: Trajectory
) -> None:
    ended: list[object] = []

    def delete() -> None:
        try:
            services.delete_dataset(dataset=dataset, caller=caller)
            ended.append("deleted")
        except Exception as error:  # noqa: BLE001 - told below
            ended.append(error)
        finally:
            connections.close_all()

    with transaction.atomic():
        services.add_ids_to_dataset(dataset=dataset, caller=caller, ids=[trajectory.pk])
        thread = Thread(target=delete)
        thread.start()
        thread.join(0.3)
        assert not ended
    thread.join(20)

    assert ended == ["deleted"]
    assert not Dataset.objects.exists()
    assert not DatasetMember.objects.exists()
