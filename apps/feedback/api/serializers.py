"""Shapes of labels in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.feedback.models import Label, Source
from apps.feedback.scoring import REWARD_FIELD
from apps.feedback.services import MAX_FIELD, MAX_TEXT


class LabelSerializer(serializers.ModelSerializer[Label]):
    """One label. `author` is the person's e-mail or the key's visible part."""

    trajectory = serializers.CharField(source="trajectory_id", read_only=True)
    step = serializers.CharField(source="step_id", read_only=True, allow_null=True)
    superseded_by = serializers.CharField(source="superseded_by_id", read_only=True, allow_null=True)
    author = serializers.SerializerMethodField()

    class Meta:
        model = Label
        fields = [
            "id",
            "trajectory",
            "step",
            "field",
            "value",
            "text",
            "source",
            "author",
            "superseded_by",
            "created_at",
        ]
        read_only_fields = fields

    def get_author(self, label: Label) -> str:
        if label.author is not None:
            return label.author.email
        return str(label.key) if label.key is not None else ""


class NewLabelSerializer(LabelSerializer):
    """A label just given, with what the trajectory's reward is now."""

    reward = serializers.FloatField(allow_null=True, read_only=True)

    class Meta(LabelSerializer.Meta):
        fields = [*LabelSerializer.Meta.fields, "reward"]


class LabelListSerializer(serializers.Serializer[Any]):
    """All labels, oldest first, and how they add up."""

    items = LabelSerializer(many=True)
    reward = serializers.FloatField(allow_null=True)
    step_rewards = serializers.DictField(child=serializers.FloatField())
    explanation = serializers.CharField()


class ResponseLabelBodySerializer(StrictSerializer):
    value = serializers.FloatField(required=False, allow_null=True, default=None, help_text="-1 to 1")
    text = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_TEXT)
    source = serializers.ChoiceField(  # type: ignore[assignment]  # the metaclass takes it off
        choices=Source.choices,
        required=False,
        default=None,
        help_text="a key's default: environment; a person's: human",
    )
    field = serializers.CharField(required=False, default=REWARD_FIELD, max_length=MAX_FIELD)
    idempotency_key = serializers.CharField(required=False, allow_blank=True, default="", max_length=100)
    choice = serializers.IntegerField(required=False, default=0, min_value=0, help_text="which of the call's n answers")


class TrajectoryLabelBodySerializer(ResponseLabelBodySerializer):
    choice = None  # type: ignore[assignment]
    step = serializers.CharField(required=False, default=None, help_text="a step's id; else it is about the whole")
