"""What a person is kept from seeing: rewards, and what others said, of the trajectories that they have open in a blind
review queue. Everything that shows a reward or a judgement to somebody asks here which trajectories those are.

The room above owns queues; here only the names of their relations are known.
"""

from apps.accounts.access import Caller
from apps.trajectories.models import Trajectory

Hidden = frozenset[str]
NOTHING: Hidden = frozenset()
_OPEN = {"reviews__state": "held", "queue__is_blind": True}


def find_hidden(caller: Caller) -> Hidden:
    """Return the ids of the trajectories that the caller reviews blind now. A key reviews nothing."""
    if caller.user is None:
        return NOTHING
    mine = {**_OPEN, "reviews__reviewer": caller.user}
    alone, paired = (
        Trajectory.objects.filter(**{f"{relation}__{name}": value for name, value in mine.items()}).values_list("pk")
        for relation in ("queue_items", "queue_pairs")
    )
    return frozenset(pk for (pk,) in alone.union(paired))
