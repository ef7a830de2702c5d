"""What happened in a queue, numbered without gaps; open pages hear that there is news and read on from their number."""

from django.db import connection, transaction
from django.utils import timezone

from apps.core.live import publish_news
from apps.feedback.queues.models import QueueEvent, ReviewQueue

MOST_AT_ONCE = 200
_RECORD = """
    WITH queue AS (
        UPDATE feedback_reviewqueue SET n_events = n_events + 1 WHERE id = %s RETURNING id, n_events
    )
    INSERT INTO feedback_queueevent (queue_id, number, kind, item, actor, at)
    SELECT id, n_events, %s, %s, %s, %s FROM queue
"""


@transaction.atomic(savepoint=False)
def record_event(queue: ReviewQueue, *, kind: str, item_id: str = "", actor: str = "") -> None:
    """Add an event, and tell open pages after commit. Last in a transaction: from here on the queue's row is held."""
    with connection.cursor() as cursor:
        cursor.execute(_RECORD, [queue.pk, kind, item_id, actor, timezone.now()])
    publish_news(queue.project_id, kind="queue", object_id=queue.pk)


def list_events(queue_id: str, *, since: int) -> list[QueueEvent]:
    """Return the events after number `since`, the oldest first; at most `MOST_AT_ONCE`."""
    return list(QueueEvent.objects.filter(queue=queue_id, number__gt=since).order_by("number")[:MOST_AT_ONCE])
