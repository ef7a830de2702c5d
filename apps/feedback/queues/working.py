"""One reviewer's way through a queue: take an item, submit what it is worth, skip it, put it back, undo.

A place at an item is taken by a conditional update, and the database's constraints say the rest: no more reviews than
wanted, one of each person, few held at once. Who has an item's lock goes on to its trajectory, then to the queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.live import news_at_once
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.queues.deciding import settle_item
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import (
    CLOSED,
    MOST_REVIEWS,
    N_SLOTS,
    ItemQuerySet,
    ItemState,
    QueueItem,
    QueueState,
    Review,
    ReviewQuerySet,
    ReviewQueue,
    ReviewState,
)
from apps.feedback.queues.saying import check_answers, is_judged_by_others, say_answers, take_back_said
from apps.feedback.queues.services import require_reviewer
from apps.feedback.schemas import find_schema

MAX_REASON = 400
LONGEST_S = 86_400
TAKEN = (
    "your reservation ran out and this item has all its reviews now, so this one is not needed. Nothing was changed; "
    "what you wrote is still in the form: copy what you want to keep, then go on"
)
ELSEWHERE = (
    "another window of yours was given this item meanwhile: go on there. Nothing was changed; what you wrote is still "
    "in this form"
)
SEEN = (
    "too late to undo: this queue is blind, and you can see by now what other people said of this item, so your review "
    "stands as it was; you may ask for another opinion"
)
DECIDED_SINCE = (
    "too late to undo: somebody has decided this item since, so your review stands as it was. A trainer or an owner "
    "can take the decision back on the item's page; then you can undo"
)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What somebody says of an item. `seconds` is how long it took."""

    answers: Mapping[str, Any]
    seconds: int | None = None
    wants_second: bool = False


def take_review(*, caller: Caller, queue: ReviewQueue, besides: str = "") -> Review | None:
    """Return the item that this person has open in the queue, or reserve the next one; None: nothing is left for them.

    `besides` names a review that is being worked on, so that the one after it is reserved ahead. Raises Conflict for a
    queue that is not open, Forbidden for whoever may not review.
    """
    user = require_reviewer(caller, queue)
    release_run_out(queue, keep=user)
    besides = besides if is_id(besides, "revw") else ""  # what is no id names nothing
    for _ in range(2):  # a second window of the same person may be a moment faster
        held = _find_held(queue, user, besides=besides)
        if held is not None:
            return held
        if queue.state != QueueState.OPEN:
            raise Conflict(f"this queue is {queue.state}: nothing is given out now")
        try:
            return _reserve(queue, user, besides=besides)
        except (IntegrityError, _OtherWindowError):
            continue
    raise Conflict("you have this queue open in other windows: submit or put back what is open there first")


def _find_held(queue: ReviewQueue, user: User, *, besides: str) -> Review | None:
    """Return what the person holds already, its time begun anew: until it lapses nobody else was given it."""
    mine = Review.objects.held().filter(queue=queue, reviewer=user).exclude(pk=besides).order_by("held_at", "pk")
    first = mine.values_list("pk", flat=True).first()  # mostly there is none: the rest is read of what there is
    held = _known().filter(pk=first).first() if first is not None else None
    return renew_review(held) if held is not None else None


def renew_review(review: Review) -> Review:
    """Begin the reservation's time anew, while it is held: the page is open and somebody is at it."""
    expires_at = _expiry(review)
    if Review.objects.held().filter(pk=review.pk).update(expires_at=expires_at) == 1:
        review.expires_at = expires_at
    return review


class _OtherWindowError(Exception):
    """Another window of the same person was given an item between two questions."""


@transaction.atomic
def _reserve(queue: ReviewQueue, user: User, *, besides: str) -> Review | None:
    free = QueueItem.objects.select_related("trajectory", "other").filter(queue=queue).with_room().unseen_by(user)
    item = _lock_first(free)
    if item is None or not _take_place(item):
        return None
    item.queue = queue
    held = dict(Review.objects.held().filter(queue=queue, reviewer=user).values_list("pk", "slot"))
    if held.keys() - {besides}:
        raise _OtherWindowError
    slot = next(slot for slot in range(N_SLOTS) if slot not in held.values())
    expires_at = timezone.now() + timedelta(minutes=queue.hold_minutes)
    review = Review.objects.create(queue=queue, item=item, reviewer=user, slot=slot, expires_at=expires_at)
    record_event(queue, kind="taken", item_id=item.pk, actor=user.email)
    return review


def _lock_first(free: ItemQuerySet) -> QueueItem | None:
    """Hold the first that nobody else is being given; where all are, the first that still has room then."""
    rows = free.order_by("turn", "pk")
    item = rows.select_for_update(skip_locked=True, of=("self",), no_key=True).first()
    while item is None and free.exists():
        item = rows.select_for_update(of=("self",), no_key=True).first()
    return item


def _take_place(item: QueueItem) -> bool:
    room = QueueItem.objects.filter(pk=item.pk, state=ItemState.OPEN, n_wanted__gt=F("n_held") + F("n_done"))
    item.n_held += 1
    return room.update(n_held=F("n_held") + 1) == 1


def find_review(*, caller: Caller, review_id: str) -> Review:
    """Return the caller's own review; anybody else's looks like a missing one."""
    known = Review.objects.select_related("queue__project", "item")
    review = known.filter(pk=review_id).first() if is_id(review_id, "revw") else None
    is_own = review is not None and caller.user is not None and review.reviewer_id == caller.user.pk
    if review is None or not is_own or caller.role_in(review.queue.project) is None:
        raise NotFound(f"you have no review {review_id!r}")
    review.item.queue = review.queue
    return review


def submit_review(*, caller: Caller, review: Review, said: Submission) -> Review:
    """Give a review: its answers become labels (or a comparison), and rewards follow.

    The same again returns it unchanged, so that a lost answer can be asked for again. After the reservation ran out it
    is taken all the same while the item still has room. Raises InvalidInput for answers that the fields do not take,
    Conflict when it was given before and said otherwise, or its place is gone.
    """
    require_reviewer(caller, review.queue)
    schema = find_schema(review.queue.project_id)
    answers = check_answers(review.item, said.answers, schema=schema)
    with transaction.atomic(), news_at_once():
        item, row = _lock(review)
        if row.state == ReviewState.SUBMITTED:
            if (row.answers, row.wants_second) != (answers, said.wants_second):
                raise Conflict("you have submitted this already, and said otherwise: undo that first (z)")
            return row
        if row.state != ReviewState.HELD:
            _take_again(item, row)
        if item.trajectory.deleted_at is not None or (item.other is not None and item.other.deleted_at is not None):
            raise Conflict("somebody has deleted this trajectory meanwhile: skip it")
        row.labels = say_answers(caller=caller, item=item, answers=answers, schema=schema)
        row.answers, row.wants_second = answers, said.wants_second
        row.seconds = _read_seconds(row, said.seconds)
        item.n_held, item.n_done = item.n_held - 1, item.n_done + 1
        if said.wants_second:
            _want_one_more(item, row)
        _close(row, ReviewState.SUBMITTED)
        settle_item(item, schema=schema)
        record_event(item.queue, kind="submitted", item_id=item.pk, actor=caller.name)
    return row


def skip_review(*, caller: Caller, review: Review, reason: str = "") -> Review:
    """Leave an item to others; it is not offered to this person again. Doing it twice is fine."""
    return _give_up(caller, review, state=ReviewState.SKIPPED, reason=reason)


def put_back_review(*, caller: Caller, review: Review, reason: str = "") -> Review:
    """Put an item back to the end of the queue, for later or for somebody else. Doing it twice is fine."""
    return _give_up(caller, review, state=ReviewState.RETURNED, reason=reason)


def undo_review(*, caller: Caller, review: Review) -> Review:
    """Take one's review back: what it said is undone, and the item is open in one's hands again, answers and all.

    Also takes back a skip. Raises Conflict for a stale undo: the labels were changed since, somebody has decided, the
    item is in one's hands anew, or in a blind queue other people have judged it too: who has submitted sees that.
    """
    user = require_reviewer(caller, review.queue)
    with transaction.atomic():
        item, row = _lock(review)
        if row.state == ReviewState.HELD:
            return row
        if row.state == ReviewState.LAPSED:
            raise Conflict("there is nothing to undo: the reservation ran out")
        if item.state == ItemState.DECIDED:
            raise Conflict(DECIDED_SINCE)
        if row.state == ReviewState.SUBMITTED:
            if item.queue.is_blind and is_judged_by_others(item, user=user):
                raise Conflict(SEEN)
            take_back_said(caller=caller, item=item, labels=row.labels)
            item.n_done -= 1
            item.state, item.disputed = ItemState.OPEN, []
            item.n_wanted = max(item.n_wanted - row.n_asked, item.n_done + item.n_held + 1)
            row.n_asked = 0
        else:
            _check_other_windows(row)
            if not _has_room(item):
                raise Conflict("too late to undo: others have given all reviews of this item meanwhile")
        item.n_held += 1
        taken = set(Review.objects.held().filter(queue=row.queue, reviewer=user).values_list("slot", flat=True))
        slot = next((slot for slot in range(N_SLOTS) if slot not in taken), None)
        if slot is None:
            raise Conflict(f"you hold {N_SLOTS} items already: submit or put back one of them, then undo")
        item.save(update_fields=["n_done", "n_held", "n_wanted", "state", "disputed"])
        row.state, row.slot, row.closed_at, row.labels = ReviewState.HELD, slot, None, []
        row.expires_at = _expiry(row)  # `held_at` stays: what was begun first is open first
        row.save()
        record_event(item.queue, kind="undone", item_id=item.pk, actor=caller.name)
    return row


def release_run_out(queue: ReviewQueue, *, keep: User | None = None) -> int:
    """Free the places whose time is up, but those of `keep`, who is here, and those of who may not review here any
    more; returns how many."""
    now = timezone.now()
    found = Review.objects.run_out(now=now).filter(queue=queue)
    ids = [pk for pk, reviewer in found.values_list("pk", "reviewer_id")[:200] if keep is None or reviewer != keep.pk]
    n_freed = 0
    for review in Review.objects.filter(pk__in=ids):
        review.queue = queue
        with transaction.atomic():
            item, row = _lock(review)
            if not Review.objects.run_out(now=now).filter(pk=row.pk).exists():
                continue  # submitted or begun anew a moment ago
            _close(row, ReviewState.LAPSED)
            _free_place(item)
            record_event(queue, kind="lapsed", item_id=item.pk)
            n_freed += 1
    return n_freed


def release_everywhere() -> int:
    """Free the places of all queues whose time is up, or whose holder has left."""
    queues = ReviewQueue.objects.filter(pk__in=Review.objects.run_out(now=timezone.now()).values("queue"))
    return sum(release_run_out(queue) for queue in queues)


def _give_up(caller: Caller, review: Review, *, state: ReviewState, reason: str) -> Review:
    require_reviewer(caller, review.queue)
    if len(reason) > MAX_REASON or not is_storable(reason):
        fault = NUL_OR_HALF if len(reason) <= MAX_REASON else f"a reason has at most {MAX_REASON} characters"
        raise InvalidInput(fault, field="reason")
    with transaction.atomic():
        item, row = _lock(review)
        if row.state == ReviewState.SUBMITTED:
            raise Conflict("you have submitted this already: undo that first (z)")
        if row.state == ReviewState.HELD:
            _free_place(item)
        elif row.state != state:
            _check_other_windows(row)
        if row.state != state:
            row.reason = reason
            _close(row, state)
            if state == ReviewState.RETURNED:
                QueueItem.objects.filter(pk=item.pk).update(turn=F("turn") + 1)
            record_event(item.queue, kind=str(state), item_id=item.pk, actor=caller.name)
    return row


def _want_one_more(item: QueueItem, row: Review) -> None:
    """Have somebody else review the item too, for its undo to take back; if others are still to come, that is it."""
    n_wanted = min(max(item.n_wanted, item.n_done + item.n_held + 1), MOST_REVIEWS)
    row.n_asked, item.n_wanted = n_wanted - item.n_wanted, n_wanted


def _take_again(item: QueueItem, row: Review) -> None:
    """After the reservation ran out, or after a skip: the place, if it is still there."""
    _check_other_windows(row)
    if not _has_room(item):
        raise Conflict(TAKEN)
    if row.state in CLOSED:
        item.n_held += 1


def _check_other_windows(row: Review) -> None:
    """Raise Conflict when its reviewer was given the (locked) item anew since this place was given up."""
    if Review.objects.present().filter(item=row.item_id, reviewer=row.reviewer_id).exclude(pk=row.pk).exists():
        raise Conflict(ELSEWHERE)


def _has_room(item: QueueItem) -> bool:
    return item.state == ItemState.OPEN and item.n_held + item.n_done < item.n_wanted


def _free_place(item: QueueItem) -> None:
    QueueItem.objects.filter(pk=item.pk, n_held__gt=0).update(n_held=F("n_held") - 1)


def _close(row: Review, state: ReviewState) -> None:
    row.state, row.closed_at = state, timezone.now()
    row.save(
        update_fields=["state", "closed_at", "answers", "labels", "wants_second", "n_asked", "seconds", "reason"],
    )


def _lock(review: Review) -> tuple[QueueItem, Review]:
    """Hold the item, then the review: one change at a time on either, and a decision takes them in this order too."""
    QueueItem.objects.select_for_update(no_key=True).only("pk").get(pk=review.item_id)
    rows = Review.objects.select_related("item__trajectory", "item__other")
    row = rows.select_for_update(of=("self",), no_key=True).get(pk=review.pk)
    row.queue = row.item.queue = review.queue
    return row.item, row


def _known() -> ReviewQuerySet:
    return Review.objects.select_related("queue__project__team", "item__trajectory", "item__other", "item__queue")


def _expiry(row: Review) -> datetime:
    return timezone.now() + timedelta(minutes=row.queue.hold_minutes)


def _read_seconds(row: Review, seconds: int | None) -> int:
    since = (timezone.now() - row.held_at).total_seconds()
    return int(min(max(seconds if seconds is not None else since, 0), LONGEST_S))
