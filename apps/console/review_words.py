"""What a reviewer is told of the people who are asked after them."""

from collections.abc import Sequence

from apps.accounts.models import User
from apps.feedback.queues.models import ItemState, QueueItem
from apps.feedback.queues.waiting import list_askable

NAMED = 2


def tell_who_is_asked(item: QueueItem) -> str:
    """Return what follows a wish for one more opinion of an item: who may be asked, and that it stays open until
    then."""
    if item.state != ItemState.OPEN:
        return f"Nobody more is asked: this item has {item.n_done} reviews, as many as one may have"
    people = list_askable(item)
    if not people and item.n_held:
        return "Somebody else has this item at hand already; it stays open until they have said theirs"
    if not people:
        return (
            "Nobody else is left who may review this item here, so it stays open until somebody is: "
            "a trainer or an owner can name one more reviewer, or close it on the queue's page"
        )
    is_due = item.queue.n_reviews > item.n_done
    anyway = f" anyway, since this queue wants {item.queue.n_reviews} reviews of an item" if is_due else ""
    return f"{_join(people)} will be asked{anyway}; the item stays open until then"


def _join(people: Sequence[User]) -> str:
    names = [user.email for user in people[:NAMED]]
    if len(people) > NAMED:
        return f"{', '.join(names)} or {len(people) - NAMED} more"
    return " or ".join(names)
