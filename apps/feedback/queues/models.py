"""Queues, their items, and the reviews that people give. What a review says becomes labels (or a comparison); here is
who was asked, who has a place, and until when.

An item has places for `n_wanted` reviews; a held place and a given review each take one, and the database counts.
"""

from datetime import datetime

from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from apps.accounts.models import Membership, Project, Role, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.trajectories.models import Trajectory

MOST_REVIEWS = 10  # of one item
REVIEWING = [role for role in Role if role.includes(Role.REVIEWER)]
N_SLOTS = 3  # places that one person holds in one queue: the open one, the next one, one that was taken back


def new_queue_id() -> str:
    return new_id("queue")


def new_item_id() -> str:
    return new_id("item")


def new_review_id() -> str:
    return new_id("revw")


class Mode(models.TextChoices):
    SCORE = "score"  # one trajectory, the queue's fields
    PAIRS = "pairs"  # two trajectories: which is better?


class QueueState(models.TextChoices):
    OPEN = "open"
    PAUSED = "paused"  # nobody is given anything; what is held can be submitted
    ARCHIVED = "archived"


class ReviewQueue(models.Model):
    """What is to be judged, by how many people, and how. `field_names` are those of the project's score schema."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_queue_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="review_queues")
    name = models.CharField(max_length=100)
    guideline = models.TextField(blank=True)
    mode = models.CharField(max_length=6, choices=Mode.choices, default=Mode.SCORE)
    field_names = models.JSONField(default=list)
    query = models.CharField(max_length=1000, blank=True)  # the search; "" with `auto_add` off: filled by hand
    sample_rate = models.FloatField(default=1.0)  # of what the search finds; the same rows whenever it is asked
    auto_add = models.BooleanField(default=False)
    n_reviews = models.PositiveSmallIntegerField(default=1)  # of each item
    is_blind = models.BooleanField(default=True)  # nobody sees others' reviews of an item before having given one
    tolerance = models.FloatField(default=0.25)  # how far numbers may lie apart, as a part of their field's range
    hold_minutes = models.PositiveSmallIntegerField(default=30)
    state = models.CharField(max_length=8, choices=QueueState.choices, default=QueueState.OPEN)
    reviewers = models.ManyToManyField(User, blank=True, related_name="+")  # none: every reviewer of the team
    n_events = models.PositiveBigIntegerField(default=0)  # the number of the last one
    filled_at = models.DateTimeField(null=True)  # the search was asked for all that there was
    looked_at = models.DateTimeField(null=True)  # and for what came since
    # Who chose the search, and the ids of what was hidden from them when it was asked: it is asked of those once more
    # when they may see them.
    searcher = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    left_out = models.JSONField(default=list)
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        app_label = "feedback"
        indexes = [models.Index(fields=["project", "-id"], name="queue_by_project")]
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"], condition=~Q(state="archived"), name="queue_name_is_unique_in_project"
            ),
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="queue_mode_is_known"),
            models.CheckConstraint(condition=Q(state__in=QueueState.values), name="queue_state_is_known"),
            models.CheckConstraint(
                condition=Q(sample_rate__gt=0, sample_rate__lte=1), name="queue_sample_rate_is_a_share"
            ),
            models.CheckConstraint(
                condition=Q(n_reviews__gte=1, n_reviews__lte=MOST_REVIEWS), name="queue_reviews_are_few"
            ),
            models.CheckConstraint(
                condition=Q(hold_minutes__gte=1, hold_minutes__lte=1440), name="queue_hold_is_a_day_at_most"
            ),
            models.CheckConstraint(condition=Q(tolerance__gte=0, tolerance__lte=1), name="queue_tolerance_is_a_share"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def has_source(self) -> bool:
        """The queue is filled by a search."""
        return bool(self.query) or self.auto_add


def is_named(user: User | OuterRef) -> Q:
    """Return the condition on what belongs to a queue: the queue is for this person, or for everybody."""
    named = ReviewQueue.reviewers.through.objects.filter(reviewqueue=OuterRef("queue"))
    return Q(~Exists(named)) | Q(Exists(named.filter(user=user)))


class ItemState(models.TextChoices):
    OPEN = "open"  # reviews are missing
    DONE = "done"  # all are there, and agree
    DISPUTED = "disputed"  # all are there, and disagree
    DECIDED = "decided"  # somebody has decided between them


class ItemQuerySet(models.QuerySet["QueueItem"]):
    def present(self) -> "ItemQuerySet":
        """Those whose trajectories nobody has deleted."""
        return self.filter(trajectory__deleted_at=None, other__deleted_at=None)

    def with_room(self) -> "ItemQuerySet":
        """Those that want a review which nobody holds."""
        return self.present().filter(state=ItemState.OPEN, n_wanted__gt=F("n_done") + F("n_held"))

    def unseen_by(self, user: User) -> "ItemQuerySet":
        """Those that the person neither reviews, has reviewed nor has skipped."""
        mine = Review.objects.filter(item=OuterRef("pk"), reviewer=user)
        return self.filter(~Exists(mine.exclude(state__in=OFFERED_AGAIN)))


class QueueItem(models.Model):
    """One thing to judge: a trajectory, or (`other`) two of them side by side."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_item_id, editable=False)
    queue = models.ForeignKey(ReviewQueue, on_delete=models.CASCADE, related_name="items")
    # `apps.trajectories.blindness` knows these relations by name.
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="queue_items")
    other = models.ForeignKey(Trajectory, on_delete=models.CASCADE, null=True, related_name="queue_pairs")
    state = models.CharField(max_length=8, choices=ItemState.choices, default=ItemState.OPEN)
    turn = models.PositiveIntegerField(default=0)  # lower comes first; putting back adds one
    n_wanted = models.PositiveSmallIntegerField()
    n_held = models.PositiveSmallIntegerField(default=0)
    n_done = models.PositiveSmallIntegerField(default=0)
    disputed = models.JSONField(default=list)  # names of the fields in which the reviews lie apart
    decision = models.JSONField(null=True)  # as a review's `answers`
    decided_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    decided_at = models.DateTimeField(null=True)
    decision_labels = models.JSONField(default=list)  # the ids of what the decision became,
    silenced_labels = models.JSONField(default=list)  # and of what it took back: labels, or comparisons
    added_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = ItemQuerySet.as_manager()

    class Meta:
        app_label = "feedback"
        indexes = [models.Index(fields=["queue", "state", "turn", "id"], name="item_by_turn")]
        constraints = [
            models.UniqueConstraint(
                fields=["queue", "trajectory"], condition=Q(other=None), name="item_is_in_a_queue_once"
            ),
            models.UniqueConstraint(
                fields=["queue", "trajectory", "other"],
                condition=Q(other__isnull=False),
                name="pair_is_in_a_queue_once",
            ),
            models.CheckConstraint(condition=~Q(trajectory=F("other")), name="item_pairs_two"),
            models.CheckConstraint(condition=Q(state__in=ItemState.values), name="item_state_is_known"),
            models.CheckConstraint(
                condition=Q(n_wanted__gte=1, n_wanted__lte=MOST_REVIEWS), name="item_reviews_are_few"
            ),
            models.CheckConstraint(
                condition=Q(n_wanted__gte=F("n_held") + F("n_done")), name="item_has_no_more_reviews_than_wanted"
            ),
            models.CheckConstraint(condition=Q(state="open") | Q(n_held=0), name="closed_item_is_held_by_nobody"),
            models.CheckConstraint(
                condition=Q(state__in=["open", "decided"]) | Q(n_done=F("n_wanted")), name="closed_item_has_its_reviews"
            ),
            models.CheckConstraint(
                condition=Q(state="decided", decision__isnull=False, decided_at__isnull=False)
                | ~Q(state="decided") & Q(decision__isnull=True, decided_at=None, decided_by=None),
                name="decided_item_has_a_decision",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class ReviewState(models.TextChoices):
    HELD = "held"
    SUBMITTED = "submitted"
    SKIPPED = "skipped"  # not this person's: never offered to them again
    RETURNED = "returned"  # for later, or for somebody else: it went to the end
    LAPSED = "lapsed"  # the time was up


CLOSED = (ReviewState.SKIPPED, ReviewState.RETURNED, ReviewState.LAPSED)
OFFERED_AGAIN = (ReviewState.RETURNED, ReviewState.LAPSED)  # to the same person


class ReviewQuerySet(models.QuerySet["Review"]):
    def held(self) -> "ReviewQuerySet":
        """Places that are held, in time or not."""
        return self.filter(state=ReviewState.HELD)

    def present(self) -> "ReviewQuerySet":
        """Places that are taken: held, or a review was given."""
        return self.filter(state__in=[ReviewState.HELD, ReviewState.SUBMITTED])

    def run_out(self, *, now: datetime) -> "ReviewQuerySet":
        """Held places whose time is up, or whose holder may not review there any more."""
        members = Membership.objects.filter(user=OuterRef("reviewer"), team=OuterRef("queue__project__team"))
        may_review = Exists(members.filter(role__in=REVIEWING)) & is_named(OuterRef("reviewer"))
        return self.held().filter(Q(expires_at__lte=now) | ~may_review)


class Review(models.Model):
    """One person's place at an item: held until `expires_at`, then given, or free for others.

    `answers` is {field: {"value", "text"}}; of a pair {"better": {"value": an id or "tie", "text"}}. `labels` are the
    ids of what it became.
    """

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_review_id, editable=False)
    queue = models.ForeignKey(ReviewQueue, on_delete=models.CASCADE, related_name="reviews")
    item = models.ForeignKey(QueueItem, on_delete=models.CASCADE, related_name="reviews")
    reviewer = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    state = models.CharField(max_length=9, choices=ReviewState.choices, default=ReviewState.HELD)
    slot = models.PositiveSmallIntegerField(default=0)
    answers = models.JSONField(default=dict)
    labels = models.JSONField(default=list)
    reason = models.CharField(max_length=400, blank=True)  # why it was skipped or put back
    wants_second = models.BooleanField(default=False)
    n_asked = models.PositiveSmallIntegerField(default=0)  # reviews that the item wants since, because of that
    held_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    seconds = models.PositiveIntegerField(null=True)  # that it took

    objects = ReviewQuerySet.as_manager()

    class Meta:
        app_label = "feedback"
        indexes = [
            models.Index(fields=["expires_at"], condition=Q(state="held"), name="review_held"),
            models.Index(fields=["queue", "reviewer", "-closed_at"], name="review_by_person"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["item", "reviewer"],
                condition=Q(state__in=["held", "submitted"]),
                name="person_reviews_an_item_once",
            ),
            models.UniqueConstraint(
                fields=["queue", "reviewer", "slot"], condition=Q(state="held"), name="person_holds_few_items"
            ),
            models.CheckConstraint(condition=Q(slot__lt=N_SLOTS), name="review_slot_is_known"),
            models.CheckConstraint(condition=Q(state__in=ReviewState.values), name="review_state_is_known"),
            models.CheckConstraint(
                condition=Q(state="held", closed_at=None) | ~Q(state="held") & Q(closed_at__isnull=False),
                name="review_is_held_or_closed",
            ),
            models.CheckConstraint(
                condition=~Q(state="submitted") | ~Q(answers={}), name="submitted_review_says_something"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.state} {self.id}"


class QueueEvent(models.Model):
    """Something happened in a queue. Numbered from 1 without gaps, so that a page which missed some asks for them."""

    queue = models.ForeignKey(ReviewQueue, on_delete=models.CASCADE, related_name="events", db_index=False)
    number = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=20)
    item = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # no key: it outlives the item
    actor = models.CharField(max_length=120, blank=True)
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        app_label = "feedback"
        constraints = [models.UniqueConstraint(fields=["queue", "number"], name="queue_event_has_its_number")]

    def __str__(self) -> str:
        return f"{self.queue_id} {self.number} {self.kind}"
