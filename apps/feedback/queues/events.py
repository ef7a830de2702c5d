"""What happened in a queue, numbered without gaps; open pages hear that there is news and read on from their number."""

from django.db import transaction

from apps.core.live import publish_news
from apps.feedback.queues.models import QueueEvent, ReviewQueue

MOST_AT_ONCE = 200


def record_event(queue_id: str, *, kind: str, item_id: str = "", actor: str = "") -> None:
    """Add an event, and tell open pages after commit. Last in a transaction: from here on the queue's row is held."""
    with transaction.atomic():
        queue = ReviewQueue.objects.select_for_update(no_key=True).only("id", "n_events", "project_id").get(pk=queue_id)
        number = queue.n_events + 1
        ReviewQueue.objects.filter(pk=queue_id).update(n_events=number)
        QueueEvent.objects.create(queue_id=queue_id, number=number, kind=kind, item=item_id, actor=actor)
    publish_news(queue.project_id, kind="queue", object_id=queue_id)


def list_events(queue_id: str, *, since: int) -> list[QueueEvent]:
    """Return the events after number `since`, the oldest first; at most `MOST_AT_ONCE`."""
    return list(QueueEvent.objects.filter(queue=queue_id, number__gt=since).order_by("number")[:MOST_AT_ONCE])
