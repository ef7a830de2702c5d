"""Datasets with trajectories in them."""

import factory
from factory.django import DjangoModelFactory

from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember
from tests.factories.accounts import ProjectFactory
from tests.factories.trajectories import TrajectoryFactory


class DatasetFactory(DjangoModelFactory[Dataset]):
    class Meta:
        model = Dataset

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"Dataset {n}")
    created_by = "owner@example.org"


class MemberFactory(DjangoModelFactory[DatasetMember]):
    class Meta:
        model = DatasetMember

    dataset = factory.SubFactory(DatasetFactory)
    trajectory = factory.SubFactory(TrajectoryFactory)
    added_how = AddedBy.HAND
    added_by = "owner@example.org"
