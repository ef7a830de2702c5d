"""Labels, without the sums that follow from them: use `apps.feedback.services` where rewards matter."""

import factory
from factory.django import DjangoModelFactory

from apps.feedback.models import Label, Source
from tests.factories.trajectories import TrajectoryFactory


class LabelFactory(DjangoModelFactory[Label]):
    class Meta:
        model = Label

    trajectory = factory.SubFactory(TrajectoryFactory)
    project = factory.SelfAttribute("trajectory.project")
    value = 1.0
    source = Source.ENVIRONMENT
