"""Shapes of preferences in the REST API. They show and check; they never save."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.core.serializers import PageQuerySerializer, StrictSerializer
from apps.feedback.models import Source
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.feedback.score_schema import MAX_TEXT

_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"type": "string", "enum": ["assistant"]},
        "content": {"type": "string", "nullable": True},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
    },
}


@extend_schema_field({"oneOf": [{"type": "string"}, _MESSAGE]})
class MessageField(serializers.JSONField):
    """An assistant message, or its words."""


class SaidBodySerializer(StrictSerializer):
    """What all preferences are told with."""

    text = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_TEXT, help_text="why")
    source = serializers.ChoiceField(  # type: ignore[assignment]  # the metaclass takes it off
        choices=Source.choices,
        required=False,
        default=None,
        help_text="a key's default: environment; a person's: human",
    )


class CorrectionBodySerializer(SaidBodySerializer):
    message = MessageField(help_text="what the step should have said: words, or an assistant message")
    idempotency_key = serializers.CharField(required=False, allow_blank=True, default="", max_length=100)


class SideBodySerializer(StrictSerializer):
    """One side: exactly one of the three."""

    step = serializers.CharField(required=False, default=None, help_text="a step's id: its own answer")
    trajectory = serializers.CharField(required=False, default=None, help_text="a trajectory's id: all of it")
    message = MessageField(required=False, default=None, help_text="an answer to the other side's prompt")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if sum(value is not None for value in attrs.values()) != 1:
            raise serializers.ValidationError("a side is one of step, trajectory and message")
        return attrs


class ComparisonBodySerializer(SaidBodySerializer):
    chosen = SideBodySerializer()
    rejected = SideBodySerializer()
    is_tie = serializers.BooleanField(required=False, default=False, help_text="both are as good")
    idempotency_key = serializers.CharField(required=False, allow_blank=True, default="", max_length=100)


class RankingBodySerializer(SaidBodySerializer):
    field = serializers.CharField(max_length=60, help_text="a ranking of the project's score schema")
    places = serializers.ListField(
        child=serializers.ListField(child=serializers.CharField(), min_length=1),
        min_length=1,
        help_text="ids of trajectories, the best first; those of one place are as good as each other",
    )


class PreferenceSerializer(serializers.ModelSerializer[Preference]):
    """One side is better than the other. `step` tells the prompt that both answer; null: whole trajectories."""

    trajectory = serializers.CharField(source="trajectory_id", read_only=True)
    step = serializers.CharField(source="step_id", read_only=True, allow_null=True)
    chosen = serializers.SerializerMethodField()
    rejected = serializers.SerializerMethodField()
    author = serializers.SerializerMethodField()
    superseded_by = serializers.CharField(source="superseded_by_id", read_only=True, allow_null=True)

    class Meta:
        model = Preference
        fields = [
            "id",
            "kind",
            "trajectory",
            "step",
            "chosen",
            "rejected",
            "is_tie",
            "field",
            "ranking",
            "text",
            "is_undo",
            "source",
            "author",
            "superseded_by",
            "created_at",
        ]
        read_only_fields = fields

    @extend_schema_field(SideBodySerializer)
    def get_chosen(self, row: Preference) -> dict[str, Any]:
        return _side(row.chosen_step_id, row.chosen_message, row.trajectory_id)

    @extend_schema_field(SideBodySerializer)
    def get_rejected(self, row: Preference) -> dict[str, Any]:
        return _side(row.rejected_step_id, row.rejected_message, row.rejected_trajectory_id)

    def get_author(self, row: Preference) -> str:
        if row.author is not None:
            return row.author.email
        return str(row.key) if row.key is not None else ""


def _side(step: str | None, message: Any, trajectory: str | None) -> dict[str, Any]:
    if step is not None:
        return {"step": step}
    return {"message": message} if message is not None else {"trajectory": trajectory}


class RankingSerializer(serializers.Serializer[Any]):
    """A ranking: its pairs, and the reward that each trajectory has now."""

    id = serializers.CharField()
    pairs = PreferenceSerializer(many=True)
    rewards = serializers.DictField(child=serializers.FloatField(allow_null=True))


class PreferencesQuerySerializer(PageQuerySerializer):
    kind = serializers.ChoiceField(choices=PreferenceKind.choices, required=False, default=None)
    trajectory = serializers.CharField(required=False, default=None, max_length=32)


class PreferencePageSerializer(serializers.Serializer[Any]):
    items = PreferenceSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)
