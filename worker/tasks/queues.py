"""Entry points of review queues: what their searches find, and places that nobody came back for."""

from celery import shared_task

from apps.core.contracts.tasks import FILL_QUEUE, TEND_QUEUES
from apps.feedback.queues import filling, working


@shared_task(name=FILL_QUEUE)
def fill_queue(queue_id: str) -> None:
    """Put in what the queue's search finds."""
    filling.fill_queue(queue_id)


@shared_task(name=TEND_QUEUES)
def tend_queues() -> None:
    """Free the places whose time is up, and add what has come to match."""
    working.release_everywhere()
    filling.tend_queues()
