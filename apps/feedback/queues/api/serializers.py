"""Shapes of review queues in the REST API. They show and check; they never save."""

from collections.abc import Sequence
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.accounts.access import Caller
from apps.core.serializers import BeforeQuerySerializer, PageSerializer, StrictSerializer
from apps.feedback.queues.models import ItemState, Mode, QueueItem, QueueState, Review, ReviewQueue
from apps.feedback.queues.results import find_seen
from apps.feedback.queues.waiting import STUCK
from apps.feedback.score_schema import MAX_TEXT

_ANSWERS = {
    "type": "object",
    "additionalProperties": {"type": "object", "properties": {"value": {}, "text": {"type": "string"}}},
}


@extend_schema_field(_ANSWERS)
class AnswersField(serializers.DictField):
    """{field: {value, text}}; of a pair {"better": {"value": one of the two ids, or "tie"}}."""


class QueueBodySerializer(StrictSerializer):
    """A queue's settings; in a change what is not named stays. `docs/review.md` tells what they mean."""

    name = serializers.CharField(required=False, max_length=100)
    guideline = serializers.CharField(required=False, allow_blank=True, max_length=MAX_TEXT)
    mode = serializers.ChoiceField(choices=Mode.choices, required=False)
    field_names = serializers.ListField(
        child=serializers.CharField(max_length=60), required=False, help_text="fields of the project's score schema"
    )
    query = serializers.CharField(required=False, allow_blank=True, max_length=1000, help_text="search that fills it")
    sample_rate = serializers.FloatField(required=False, help_text="share of what the search finds")
    auto_add = serializers.BooleanField(required=False, help_text="new matches come by themselves")
    n_reviews = serializers.IntegerField(required=False, help_text="people for each item")
    is_blind = serializers.BooleanField(required=False, help_text="others' reviews are hidden until one's own is given")
    tolerance = serializers.FloatField(required=False, help_text="share of a range that numbers may lie apart")
    hold_minutes = serializers.IntegerField(required=False, help_text="how long an item stays reserved")
    reviewers = serializers.ListField(
        child=serializers.CharField(max_length=254), required=False, help_text="e-mails; none: all of the team"
    )


class QueueChangeSerializer(QueueBodySerializer):
    state = serializers.ChoiceField(choices=QueueState.choices, required=False)


class NewQueueSerializer(QueueBodySerializer):
    name = serializers.CharField(max_length=100)


class QueueSerializer(serializers.ModelSerializer[ReviewQueue]):
    """A queue and its settings."""

    reviewers = serializers.SerializerMethodField()
    author = serializers.CharField(source="author.email", allow_null=True, default=None, read_only=True)

    class Meta:
        model = ReviewQueue
        fields = [
            "id",
            "name",
            "guideline",
            "mode",
            "field_names",
            "query",
            "sample_rate",
            "auto_add",
            "n_reviews",
            "is_blind",
            "tolerance",
            "hold_minutes",
            "reviewers",
            "state",
            "author",
            "filled_at",
            "created_at",
        ]
        read_only_fields = fields

    def get_reviewers(self, queue: ReviewQueue) -> list[str]:
        return sorted(user.email for user in queue.reviewers.all())


class QueuePageSerializer(PageSerializer):
    items = QueueSerializer(many=True)


class IdsBodySerializer(StrictSerializer):
    ids = serializers.ListField(child=serializers.CharField(max_length=40), help_text="of trajectories")


class AddedItemsSerializer(serializers.Serializer[Any]):
    added = serializers.IntegerField(help_text="how many are new")


class ItemsQuerySerializer(BeforeQuerySerializer):
    state = serializers.ChoiceField(
        choices=[*ItemState.choices, (STUCK, "open, and nobody is left to review it")], required=False, default=""
    )


class QueueItemSerializer(serializers.ModelSerializer[QueueItem]):
    """One item; `other` is the second of a pair."""

    queue = serializers.CharField(source="queue_id", read_only=True)
    trajectory = serializers.CharField(source="trajectory_id", read_only=True)
    other = serializers.CharField(source="other_id", read_only=True, allow_null=True)
    decision = AnswersField(allow_null=True, read_only=True)
    decided_by = serializers.CharField(source="decided_by.email", allow_null=True, default=None, read_only=True)

    class Meta:
        model = QueueItem
        fields = [
            "id",
            "queue",
            "trajectory",
            "other",
            "state",
            "n_wanted",
            "n_held",
            "n_done",
            "disputed",
            "decision",
            "decided_by",
            "decided_at",
            "added_at",
        ]
        read_only_fields = fields


def show_items(queue: ReviewQueue, items: Sequence[QueueItem], *, caller: Caller) -> list[dict[str, Any]]:
    """Return items of a queue as data. In which fields people disagree, and what was decided, is told to those only who
    may know what was said."""
    seen = find_seen(queue, items, caller=caller)
    unseen: dict[str, Any] = {"disputed": [], "decision": None}
    shown = QueueItemSerializer(items, many=True).data
    return [dict(one) if one["id"] in seen else {**one, **unseen} for one in shown]


class ItemPageSerializer(PageSerializer):
    items = QueueItemSerializer(many=True)


class ReviewSerializer(serializers.ModelSerializer[Review]):
    """One person's review of an item. After an undo `answers` are those that were taken back."""

    queue = serializers.CharField(source="queue_id", read_only=True)
    item = serializers.CharField(source="item_id", read_only=True)
    trajectory = serializers.CharField(source="item.trajectory_id", read_only=True)
    other = serializers.CharField(source="item.other_id", read_only=True, allow_null=True)
    reviewer = serializers.CharField(source="reviewer.email", allow_null=True, default=None, read_only=True)
    answers = AnswersField(read_only=True)
    labels = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = Review
        fields = [
            "id",
            "queue",
            "item",
            "trajectory",
            "other",
            "reviewer",
            "state",
            "answers",
            "labels",
            "reason",
            "wants_second",
            "expires_at",
            "closed_at",
            "seconds",
        ]
        read_only_fields = fields


class ItemWithReviewsSerializer(QueueItemSerializer):
    """An item and what was said; `reviews` is null while the queue is blind to the caller."""

    askable = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="of an open item: who may still be given it"
    )
    reviews = ReviewSerializer(many=True, allow_null=True, read_only=True)

    class Meta(QueueItemSerializer.Meta):
        fields = [*QueueItemSerializer.Meta.fields, "askable", "reviews"]


class NextBodySerializer(StrictSerializer):
    besides = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=40, help_text="a review at work: reserve the one after"
    )


class NextSerializer(serializers.Serializer[Any]):
    """What to review now, null when nothing is left for the caller, and how much is."""

    review = ReviewSerializer(allow_null=True)
    left = serializers.IntegerField()


class SubmitBodySerializer(StrictSerializer):
    answers = AnswersField()
    seconds = serializers.IntegerField(
        required=False, default=None, allow_null=True, min_value=0, max_value=2**31 - 1, help_text="it took"
    )
    wants_second = serializers.BooleanField(required=False, default=False, help_text="ask for another opinion")


class ReasonBodySerializer(StrictSerializer):
    reason = serializers.CharField(required=False, default="", allow_blank=True, max_length=400)


class AnswersBodySerializer(StrictSerializer):
    answers = AnswersField()


class IntoDatasetBodySerializer(StrictSerializer):
    dataset = serializers.CharField(max_length=40)


class CountsSerializer(serializers.Serializer[Any]):
    """Items by state, and reviews in all."""

    items = serializers.IntegerField()
    open = serializers.IntegerField()
    done = serializers.IntegerField()
    disputed = serializers.IntegerField()
    decided = serializers.IntegerField()
    reviews_done = serializers.IntegerField()
    reviews_wanted = serializers.IntegerField()
    reviews_left = serializers.IntegerField()


class ReviewProgressSerializer(serializers.Serializer[Any]):
    """One person's work; `per_hour` while they were at it."""

    name = serializers.CharField()
    submitted = serializers.IntegerField()
    skipped = serializers.IntegerField()
    held = serializers.IntegerField()
    lapsed = serializers.IntegerField()
    median_s = serializers.FloatField(allow_null=True)
    last_day = serializers.IntegerField()
    per_hour = serializers.FloatField(allow_null=True)
    last_at = serializers.DateTimeField(allow_null=True)


class AgreementSerializer(serializers.Serializer[Any]):
    """Krippendorff's alpha in one field, of all and of each person with the others; null: nothing to compare."""

    field = serializers.CharField()
    words = serializers.CharField()
    level = serializers.CharField()
    alpha = serializers.FloatField(allow_null=True)
    n_items = serializers.IntegerField()
    by_person = serializers.DictField(child=serializers.FloatField(allow_null=True))


class PersonsPartSerializer(serializers.Serializer[Any]):
    """Somebody who may review here, and how many items they may still be given."""

    name = serializers.CharField()
    left = serializers.IntegerField()


class WaitingSerializer(serializers.Serializer[Any]):
    """Open items: in somebody's hands, to be taken, or stuck: nobody is left who may review them. Of these some
    were skipped by people who may review here, and some have a review."""

    at_hand = serializers.IntegerField()
    free = serializers.IntegerField()
    stuck = serializers.IntegerField()
    skipped = serializers.IntegerField()
    reviewed = serializers.IntegerField()
    people = PersonsPartSerializer(many=True)


class WhomBodySerializer(StrictSerializer):
    whom = serializers.ChoiceField(
        choices=[("everybody", "all who skipped a stuck item"), ("me", "the caller, of all that they skipped")]
    )


class ChangedItemsSerializer(serializers.Serializer[Any]):
    items = serializers.IntegerField(help_text="how many it was done to")


class QueueResultsSerializer(serializers.Serializer[Any]):
    counts = CountsSerializer()
    waiting = WaitingSerializer()
    progress = ReviewProgressSerializer(many=True)
    agreement = AgreementSerializer(many=True)


class SinceQuerySerializer(StrictSerializer):
    since = serializers.IntegerField(required=False, default=0, min_value=0, max_value=2**62)


class QueueEventSerializer(serializers.Serializer[Any]):
    """Something happened; numbers have no gaps."""

    number = serializers.IntegerField()
    kind = serializers.CharField()
    item = serializers.CharField()
    actor = serializers.CharField()
    at = serializers.DateTimeField()


class QueueEventsSerializer(serializers.Serializer[Any]):
    items = QueueEventSerializer(many=True)
    newest = serializers.IntegerField(help_text="number of the queue's last event")
