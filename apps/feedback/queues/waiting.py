"""Whom open items wait for: somebody who has them at hand, somebody who may still be asked, or nobody; and the ways on
for those that wait for nobody. Who was given an item and neither put it back nor let it lapse is not asked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Membership, Role, User
from apps.core.errors import Conflict
from apps.feedback.queues.deciding import settle_item
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import (
    OFFERED_AGAIN,
    REVIEWING,
    ItemQuerySet,
    ItemState,
    QueueItem,
    Review,
    ReviewQueue,
    ReviewState,
)
from apps.feedback.queues.services import require_reviewer

STUCK = "stuck"  # beside the states of items: open, and waiting for nobody
MOST_CLOSED = 500  # at once
NO_CHANCE = "no item of this queue waits for that"


@dataclass(frozen=True, kw_only=True)
class PersonsPart:
    """One who may review in a queue, and how many items they may still be given."""

    name: str
    left: int


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A queue's open items by what they wait for. Of those that wait for nobody, `skipped` were skipped by somebody who
    may review here and `reviewed` have a review."""

    at_hand: int
    free: int
    stuck: int
    skipped: int
    reviewed: int
    people: list[PersonsPart]


def list_people(queue: ReviewQueue) -> list[User]:
    """Return who may review in the queue: reviewers of the team, or those of them whom it names."""
    members = Membership.objects.filter(team=queue.project.team_id, role__in=REVIEWING)
    named = queue.reviewers.values("pk")
    if named.exists():
        members = members.filter(user__in=named)
    return [member.user for member in members.select_related("user").order_by("user__email")]


def find_stuck(*queues: ReviewQueue) -> ItemQuerySet:
    """Return the queues' items that want a review which nobody is left to give."""
    named = ReviewQueue.reviewers.through.objects.filter(reviewqueue=OuterRef(OuterRef("queue")))
    passed = Review.objects.filter(item=OuterRef(OuterRef("pk")), reviewer=OuterRef("user"))
    people = Membership.objects.filter(
        Q(~Exists(named)) | Q(Exists(named.filter(user=OuterRef("user")))),
        ~Exists(passed.exclude(state__in=OFFERED_AGAIN)),
        team=OuterRef("queue__project__team"),
        role__in=REVIEWING,
    )
    return QueueItem.objects.filter(~Exists(people), queue__in=queues, n_held=0).with_room()


def count_many_stuck(queues: Sequence[ReviewQueue]) -> dict[str, int]:
    """Return of each queue, by id, how many items wait for nobody, in one question for all."""
    found = dict(find_stuck(*queues).order_by().values_list("queue_id").annotate(n=Count("pk")))
    return {queue.pk: found.get(queue.pk, 0) for queue in queues}


def read_waiting(queue: ReviewQueue) -> Waiting:
    """Return what the queue's open items wait for, and for whom."""
    people = list_people(queue)
    still_open = QueueItem.objects.filter(queue=queue, state=ItemState.OPEN).present()
    held = Count("pk", filter=Q(n_held__gt=0))
    counts = still_open.order_by().aggregate(n=Count("pk"), at_hand=held)
    stuck = find_stuck(queue).values("pk")
    rows = QueueItem.objects.filter(pk__in=stuck).order_by()
    of_stuck = rows.aggregate(
        stuck=Count("pk", distinct=True),
        skipped=Count("pk", distinct=True, filter=_skipped_by(people)),
        reviewed=Count("pk", distinct=True, filter=Q(n_done__gt=0)),
    )
    free = counts["n"] - counts["at_hand"] - of_stuck["stuck"]
    return Waiting(at_hand=counts["at_hand"], free=free, **of_stuck, people=_list_parts(queue, people))


def _skipped_by(people: Sequence[User]) -> Q:
    return Q(reviews__state=ReviewState.SKIPPED, reviews__reviewer__in=people)


def _list_parts(queue: ReviewQueue, people: Sequence[User]) -> list[PersonsPart]:
    """Return of each person how many items have room for them, in two questions for all."""
    free = QueueItem.objects.filter(queue=queue).with_room()
    passed = Review.objects.filter(item__in=free.values("pk"), reviewer__in=people)
    passed = passed.exclude(state__in=OFFERED_AGAIN).order_by()
    n_passed = dict(passed.values_list("reviewer").annotate(n=Count("item", distinct=True)))
    n_free = free.count()
    return [PersonsPart(name=user.email, left=max(n_free - n_passed.get(user.pk, 0), 0)) for user in people]


def list_askable(item: QueueItem) -> list[User]:
    """Return who may still be given the item."""
    passed = Review.objects.filter(item=item).exclude(state__in=OFFERED_AGAIN)
    known = set(passed.values_list("reviewer_id", flat=True))
    return [user for user in list_people(item.queue) if user.pk not in known]


def list_skipped(queue: ReviewQueue, user: User) -> QuerySet[Review]:
    """Return this person's skips of items that still have room."""
    open_items = QueueItem.objects.filter(queue=queue).with_room()
    return Review.objects.filter(queue=queue, reviewer=user, state=ReviewState.SKIPPED, item__in=open_items)


@transaction.atomic
def ask_me_again(*, caller: Caller, queue: ReviewQueue) -> int:
    """Have the caller be given again what they skipped and others have not reviewed; returns how many items.

    Raises Conflict when there is none, Forbidden for whoever may not review here.
    """
    user = require_reviewer(caller, queue)
    return _offer_again(caller, queue, list_skipped(queue, user))


@transaction.atomic
def ask_all_again(*, caller: Caller, queue: ReviewQueue) -> int:
    """Have items that wait for nobody be given again to those who skipped them; returns how many items.

    Raises Conflict when nobody skipped one, Forbidden for reviewers.
    """
    require_role(caller, queue.project, Role.TRAINER)
    stuck = find_stuck(queue).values("pk")
    return _offer_again(caller, queue, Review.objects.filter(item__in=stuck, state=ReviewState.SKIPPED))


def _offer_again(caller: Caller, queue: ReviewQueue, skips: QuerySet[Review]) -> int:
    """A skip becomes a putting back: whoever it was may be given the item again."""
    found = dict(skips.values_list("pk", "item_id"))
    if not Review.objects.filter(pk__in=found, state=ReviewState.SKIPPED).update(state=ReviewState.RETURNED):
        raise Conflict(NO_CHANCE)
    record_event(queue, kind="asked again", actor=caller.name)
    return len(set(found.values()))


@transaction.atomic
def close_stuck(*, caller: Caller, queue: ReviewQueue) -> int:
    """Be content with the reviews that items have which wait for nobody: they are done, or disputed; returns how many,
    `MOST_CLOSED` at most. What nobody has reviewed stays open.

    Raises Conflict when there is none, Forbidden for reviewers.
    """
    require_role(caller, queue.project, Role.TRAINER)
    wanted = find_stuck(queue).filter(n_done__gt=0).values_list("pk", flat=True)
    rows = QueueItem.objects.filter(pk__in=list(wanted[:MOST_CLOSED])).select_related("queue__project")
    locked = list(rows.order_by("pk").select_for_update(of=("self",), no_key=True))
    still = set(
        find_stuck(queue).filter(pk__in=[item.pk for item in locked], n_done__gt=0).values_list("pk", flat=True)
    )
    if not still:
        raise Conflict(NO_CHANCE)
    for item in locked:
        if item.pk in still:
            item.n_wanted = item.n_done
            settle_item(item)
    record_event(queue, kind="closed", actor=caller.name)
    return len(still)
