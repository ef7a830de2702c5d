"""The tasks of review queues: they fill, they free, they add what is new."""

from datetime import timedelta

import pytest
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.feedback.queues.models import QueueItem, Review
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import take_review
from tests.factories.trajectories import TrajectoryFactory
from worker.tasks.queues import fill_queue, tend_queues

pytestmark = pytest.mark.django_db


def test_a_queue_is_filled_and_tended(project: Project, agent: Agent, owner: User) -> None:
    caller = Caller(user=owner)
    TrajectoryFactory.create(agent=agent, state="complete", completed_at=timezone.now(), n_steps=1)
    queue = create_queue(
        caller=caller, project=project, settings={"name": "x", "query": "is:complete", "auto_add": True}
    )
    fill_queue(queue.pk)
    assert QueueItem.objects.count() == 1
    review = take_review(caller=caller, queue=queue)
    assert review is not None
    Review.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    TrajectoryFactory.create(agent=agent, state="complete", completed_at=timezone.now(), n_steps=1)
    tend_queues()
    assert Review.objects.get().state == "lapsed"
    assert set(QueueItem.objects.values_list("n_held", flat=True)) == {0}
    assert QueueItem.objects.count() == 2
