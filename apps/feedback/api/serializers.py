"""Shapes of labels in the REST API. They show and check; they never save."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.core.serializers import PageQuerySerializer, PageSerializer, StrictSerializer
from apps.feedback.models import Label, Source
from apps.feedback.score_schema import MAX_TEXT, REWARD_FIELD
from apps.feedback.services import MAX_END_USER, MAX_FIELD

_SPAN = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string"}], "nullable": True})
class SaidField(serializers.JSONField):
    """An answer on its field's own scale. What the field takes, the score schema says."""


@extend_schema_field(_SPAN)
class SpanField(serializers.ListField):
    """Two places in a step's words, counted in characters (Unicode code points)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(child=serializers.IntegerField(min_value=0), min_length=2, max_length=2, **kwargs)


class LabelSerializer(serializers.ModelSerializer[Label]):
    """One label. `author` is the person's e-mail, the key's visible part, or a grader's version. `said` is the answer
    on its field's scale, `value` what it was worth, -1 to 1."""

    trajectory = serializers.CharField(source="trajectory_id", read_only=True)
    step = serializers.CharField(source="step_id", read_only=True, allow_null=True)
    span = serializers.SerializerMethodField()
    said = serializers.SerializerMethodField()
    superseded_by = serializers.CharField(source="superseded_by_id", read_only=True, allow_null=True)
    author = serializers.SerializerMethodField()

    class Meta:
        model = Label
        fields = [
            "id",
            "trajectory",
            "step",
            "span",
            "field",
            "value",
            "said",
            "text",
            "is_undo",
            "source",
            "author",
            "end_user",
            "superseded_by",
            "created_at",
        ]
        read_only_fields = fields

    def get_author(self, label: Label) -> str:
        if label.author is not None:
            return label.author.email
        if label.grader is not None:
            return str(label.grader)
        if label.token is not None:
            return str(label.token)
        return str(label.key) if label.key is not None else ""

    @extend_schema_field(_SPAN | {"nullable": True})
    def get_span(self, label: Label) -> list[int] | None:
        return list(label.span) if label.span else None

    @extend_schema_field({"nullable": True})
    def get_said(self, label: Label) -> Any:
        return label.value if label.said is None else label.said


class NewLabelSerializer(LabelSerializer):
    """A label just given, with what the trajectory's reward is now."""

    reward = serializers.FloatField(allow_null=True, read_only=True)

    class Meta(LabelSerializer.Meta):
        fields = [*LabelSerializer.Meta.fields, "reward"]


class SourceTermSerializer(serializers.Serializer[Any]):
    """What the labels of one source say of one field: the mean of `values`."""

    source = serializers.ChoiceField(choices=Source.choices)  # type: ignore[assignment]  # the metaclass takes it off
    reward = serializers.FloatField()
    weight = serializers.FloatField()
    values = serializers.ListField(child=serializers.FloatField())


class FieldTermSerializer(serializers.Serializer[Any]):
    """What one field adds to a reward: the weighted mean of its sources."""

    field = serializers.CharField()
    reward = serializers.FloatField()
    weight = serializers.FloatField()
    sources = SourceTermSerializer(many=True)
    n_outranked = serializers.IntegerField(help_text="labels of less trusted sources, which do not count")


class ScoreSerializer(serializers.Serializer[Any]):
    """How the labels of the target add up: `reward` is the weighted mean of `fields`, or, `from` steps or spans, the
    mean of their rewards."""

    reward = serializers.FloatField(allow_null=True)
    fields = FieldTermSerializer(many=True)  # type: ignore[assignment]  # the metaclass takes it off
    words = serializers.CharField()

    def get_fields(self) -> dict[str, Any]:
        origin = serializers.ChoiceField(choices=["labels", "steps", "spans"], allow_null=True)
        return {**super().get_fields(), "from": origin}


class LabelListSerializer(serializers.Serializer[Any]):
    """All labels of the target, oldest first, and how they add up (`score`); what the whole trajectory's come to."""

    items = LabelSerializer(many=True)
    reward = serializers.FloatField(allow_null=True)
    step_rewards = serializers.DictField(child=serializers.FloatField())
    explanation = serializers.CharField()
    score = ScoreSerializer()


class ResponseLabelBodySerializer(StrictSerializer):
    value = SaidField(
        required=False,
        allow_null=True,
        default=None,
        help_text="on the field's scale; of the field reward: a number from -1 to 1",
    )
    text = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_TEXT)
    source = serializers.ChoiceField(  # type: ignore[assignment]  # the metaclass takes it off
        choices=Source.choices,
        required=False,
        default=None,
        help_text="a key's default: environment; a person's: human",
    )
    field = serializers.CharField(
        required=False, default=REWARD_FIELD, max_length=MAX_FIELD, help_text="of the project's score schema"
    )
    span = SpanField(required=False, default=None, help_text="what it is about in the step's words: [start, end]")
    end_user = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=MAX_END_USER,
        help_text="your name for the end user who said it: each has a voice of their own",
    )
    replaces = serializers.CharField(required=False, default=None, help_text="a label of your own in the same field")
    idempotency_key = serializers.CharField(required=False, allow_blank=True, default="", max_length=100)
    choice = serializers.IntegerField(required=False, default=0, min_value=0, help_text="which of the call's n answers")


class TrajectoryLabelBodySerializer(ResponseLabelBodySerializer):
    choice = None  # type: ignore[assignment]
    step = serializers.CharField(required=False, default=None, help_text="a step's id; else it is about the whole")


class StepLabelBodySerializer(ResponseLabelBodySerializer):
    choice = None  # type: ignore[assignment]


class HintsQuerySerializer(PageQuerySerializer):
    trajectory = serializers.CharField(required=False, default=None, max_length=32)


class HintPageSerializer(PageSerializer):
    items = LabelSerializer(many=True)
