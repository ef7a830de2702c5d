"""What came out of a queue: how far it is, who did how much and how fast, how far people agree. Counts, no changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.aggregates import ArrayAgg
from django.db.models import Case, Count, F, Max, Q, QuerySet, Sum, When
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Role, User
from apps.core.errors import InvalidInput
from apps.feedback.queues.agreement import Level, Unit, find_alpha
from apps.feedback.queues.models import ItemState, Mode, QueueItem, Review, ReviewQueue, ReviewState, is_named
from apps.feedback.queues.services import BETTER, read_fields
from apps.feedback.queues.waiting import STUCK, find_stuck
from apps.feedback.score_schema import FieldKind, FieldSpec
from apps.trajectories.blindness import NOTHING, Hidden

PACE_OVER = timedelta(hours=24)
COMPARED = 5000  # items, the newest, that agreement is counted over
LEVELS = {
    FieldKind.BINARY: Level.NOMINAL,
    FieldKind.CHOICE: Level.NOMINAL,
    FieldKind.SCALE: Level.ORDINAL,
    FieldKind.NUMBER: Level.INTERVAL,
}


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Items by state, and reviews: given and wanted in all."""

    open: int
    done: int
    disputed: int
    decided: int
    reviews_done: int
    reviews_wanted: int

    @property
    def items(self) -> int:
        return self.open + self.done + self.disputed + self.decided

    @property
    def reviews_left(self) -> int:
        return self.reviews_wanted - self.reviews_done


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One person's work in a queue. `per_hour` is of the last day's hours in which they reviewed."""

    name: str
    submitted: int
    skipped: int
    held: int
    lapsed: int
    median_s: float | None
    last_day: int
    per_hour: float | None
    last_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class FieldAgreement:
    """How far people agree in one field: alpha over `n_items` with two or more reviews, and of each with the others."""

    field: str
    words: str
    level: str
    alpha: float | None
    n_items: int
    by_person: dict[str, float | None]


def count_items(queue: ReviewQueue) -> Counts:
    """Return how far the queue is. Items of deleted trajectories do not count."""
    return count_many([queue])[queue.pk]


def count_many(queues: Sequence[ReviewQueue]) -> dict[str, Counts]:
    """Return how far each queue is, by id, in one question for all."""
    states = {str(state): Count("pk", filter=Q(state=state)) for state in ItemState.values}
    # A decision ends an item, whatever is still wanted of it.
    wanted = Case(When(state=ItemState.DECIDED, then=F("n_done")), default=F("n_wanted"))
    items = QueueItem.objects.filter(queue__in=queues).present().order_by().values("queue_id")
    rows = items.annotate(**states, reviews_done=Sum("n_done", default=0), reviews_wanted=Sum(wanted, default=0))
    found: dict[str, Counts] = {}
    for row in rows:
        numbers: dict[str, Any] = dict(row)
        queue_id = str(numbers.pop("queue_id"))
        found[queue_id] = Counts(**numbers)
    nothing = Counts(open=0, done=0, disputed=0, decided=0, reviews_done=0, reviews_wanted=0)
    return {queue.pk: found.get(queue.pk, nothing) for queue in queues}


def count_left_for(queue: ReviewQueue, user: User) -> int:
    """Return how many items of the queue this person could still be given or holds."""
    return count_many_left([queue], user)[queue.pk]


def count_many_left(queues: Sequence[ReviewQueue], user: User) -> dict[str, int]:
    """Return the same for each queue, by id, in one question for all: an item that goes from a hand into the queue or
    back meanwhile counts once. Where others are named nothing is left."""
    items = QueueItem.objects.filter(is_named(user), queue__in=queues)
    held = Review.objects.held().filter(queue__in=queues, reviewer=user)
    free = items.with_room().unseen_by(user)
    rows = items.filter(Q(pk__in=held.values("item")) | Q(pk__in=free.values("pk"))).order_by()
    left = dict(rows.values_list("queue_id").annotate(n=Count("pk")))
    return {queue.pk: left.get(queue.pk, 0) for queue in queues}


def read_progress(queue: ReviewQueue) -> list[Progress]:
    """Return everybody's work, who did most first."""
    since = timezone.now() - PACE_OVER
    given = Q(state=ReviewState.SUBMITTED)
    rows = (
        Review.objects.filter(queue=queue)
        .exclude(reviewer=None)
        .order_by()
        .values(name=F("reviewer__email"))
        .annotate(
            submitted=Count("pk", filter=given),
            skipped=Count("pk", filter=Q(state=ReviewState.SKIPPED)),
            held=Count("pk", filter=Q(state=ReviewState.HELD)),
            lapsed=Count("pk", filter=Q(state=ReviewState.LAPSED)),
            last_day=Count("pk", filter=given & Q(closed_at__gte=since)),
            last_at=Max("closed_at", filter=given),
            all_s=ArrayAgg("seconds", filter=given & Q(seconds__isnull=False), default=[]),
            day_s=ArrayAgg("seconds", filter=given & Q(closed_at__gte=since, seconds__isnull=False), default=[]),
        )
    )
    people = [_read_person(dict(row)) for row in rows]
    return sorted(people, key=lambda person: (-person.submitted, person.name))


def _read_person(row: dict[str, Any]) -> Progress:
    seconds, day_s = sorted(row.pop("all_s")), row.pop("day_s")
    spent = sum(day_s)
    return Progress(
        median_s=float(seconds[len(seconds) // 2]) if seconds else None,
        per_hour=3600 * len(day_s) / spent if spent else None,
        **row,
    )


def read_agreement(queue: ReviewQueue, *, hidden: Hidden = NOTHING) -> list[FieldAgreement]:
    """Return how far people agree, field by field, over the newest items that several people have reviewed; of
    `hidden` trajectories none counts."""
    seen = QueueItem.objects.filter(queue=queue).exclude(trajectory__in=hidden).exclude(other__in=hidden)
    items = seen.filter(n_done__gte=2).order_by("-pk").values("pk")[:COMPARED]
    given = Review.objects.filter(item__in=items, state=ReviewState.SUBMITTED).exclude(reviewer=None)
    rows = list(given.values_list("item_id", "item__trajectory_id", "reviewer__email", "answers"))
    if queue.mode == Mode.PAIRS:
        return [_agree(BETTER, "which is better", Level.NOMINAL, rows)]
    specs = [spec for spec in read_fields(queue) if spec.kind in LEVELS]
    return [
        _agree(spec.name, spec.words, LEVELS[spec.kind], [row for row in rows if _fits(spec, row[3])]) for spec in specs
    ]


def _fits(spec: FieldSpec, answers: dict[str, Any]) -> bool:
    """Say whether the field, as it is now, takes what a review said: the schema may have changed since."""
    try:
        spec.read(answers[spec.name]["value"])
    except (InvalidInput, KeyError):
        return False
    return True


def _agree(
    field: str, words: str, level: Level, rows: Iterable[tuple[str, str, str, dict[str, Any]]]
) -> FieldAgreement:
    units: dict[str, dict[str, Any]] = {}
    for item, first, person, answers in rows:
        if field in answers:
            value = answers[field]["value"]
            # Of a pair the place counts, since every pair has other ids.
            units.setdefault(item, {})[person] = (
                ("first" if value == first else value[:3]) if field == BETTER else value
            )
    paired: list[Unit] = [unit for unit in units.values() if len(unit) > 1]
    people = sorted({person for unit in paired for person in unit})
    return FieldAgreement(
        field=field,
        words=words,
        level=level,
        alpha=find_alpha(paired, level=level),
        n_items=len(paired),
        by_person={person: find_alpha(paired, level=level, of=person) for person in people},
    )


def list_items(queue: ReviewQueue, *, state: str = "") -> QuerySet[QueueItem]:
    """Return the queue's items, for paging: all, those in a state, or those that are stuck."""
    rows = QueueItem.objects.filter(queue=queue).present().select_related("trajectory", "other", "decided_by")
    if state == STUCK:
        return rows.filter(pk__in=find_stuck(queue).values("pk"))
    return rows.filter(state=state) if state else rows


def read_reviews(item: QueueItem, *, caller: Caller) -> list[Review] | None:
    """Return the reviews of an item; None: the queue is blind, and this person has not reviewed it yet."""
    if item.pk not in find_seen(item.queue, [item], caller=caller):
        return None
    given = Review.objects.filter(item=item, state=ReviewState.SUBMITTED).select_related("reviewer")
    return list(given.order_by("closed_at"))


def find_seen(queue: ReviewQueue, items: Sequence[QueueItem], *, caller: Caller) -> set[str]:
    """Return the ids of those of the queue's items whose reviews the caller may see. In a blind queue trainers and
    owners do, unless they were given the item themselves and it is open still; others after their own review."""
    if not queue.is_blind:
        return {item.pk for item in items}
    mine = Review.objects.filter(item__in=items, reviewer=caller.user) if caller.user else Review.objects.none()
    states = set(mine.values_list("item_id", "state"))
    given = {item for item, _ in states}
    orders = caller.role_in(queue.project) in {Role.OWNER, Role.TRAINER}
    return {
        item.pk
        for item in items
        if (item.pk, ReviewState.SUBMITTED) in states
        or (orders and not (item.pk in given and item.state == ItemState.OPEN))
    }
