"""What a person is kept from seeing: rewards, and what others said, of the trajectories that they were given in a blind
review queue. Everything that shows, sums or selects by a reward or a judgement asks here which trajectories those are.

Whoever put an item back, skipped it or let it lapse may still be given it, or take it up again: it stays hidden from
them until they have said theirs, or the item has all its reviews.

The room above owns queues; here only the names of their relations are known.
"""

from django.db.models import Count, Q

from apps.accounts.access import Caller
from apps.trajectories.models import Trajectory

Hidden = frozenset[str]
NOTHING: Hidden = frozenset()


def find_hidden(caller: Caller, *, project_id: str | None = None) -> Hidden:
    """Return the ids of the trajectories (of all projects, or of one) that the caller reviews blind, or still may. A
    key reviews nothing."""
    if caller.user is None:
        return NOTHING
    rows = Trajectory.objects.all() if project_id is None else Trajectory.objects.filter(project=project_id)
    alone, paired = (
        rows.filter(
            **{f"{items}__state": "open", f"{items}__queue__is_blind": True, f"{items}__reviews__reviewer": caller.user}
        )
        .order_by()
        .values("pk", items)
        .annotate(n_given=Count(f"{items}__reviews", filter=Q(**{f"{items}__reviews__state": "submitted"})))
        .filter(n_given=0)
        .values_list("pk")
        for items in ("queue_items", "queue_pairs")
    )
    return frozenset(pk for (pk,) in alone.union(paired))
