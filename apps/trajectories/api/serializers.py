"""Shapes of trajectories and steps in the REST API. They show and check; they never save."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from apps.core.serializers import (
    LimitQuerySerializer,
    PageQuerySerializer,
    PageSerializer,
    StrictSerializer,
    WholeNumberField,
)
from apps.trajectories.api.rewards import RewardField
from apps.trajectories.blindness import Hidden
from apps.trajectories.models import Channel, Step, Trajectory, TrajectoryState
from apps.trajectories.search.fields import BREAKS, FIELDS
from apps.trajectories.trie import StepView

SEARCH_HELP = "a search: " + " ".join(field.example for field in FIELDS.values()) + ' "words that were said"'


class TrajectorySerializer(serializers.ModelSerializer[Trajectory]):
    """A trajectory without its steps. `base_url` is what an agent calls so that its calls land here."""

    agent = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]
    base_url = serializers.SerializerMethodField()
    parent = serializers.CharField(  # type: ignore[assignment]  # the metaclass takes it off
        source="parent_id", allow_null=True, read_only=True, help_text="the session that started this one"
    )
    tags = serializers.SlugRelatedField(slug_field="name", many=True, read_only=True)  # type: ignore[var-annotated]
    reward = RewardField()

    class Meta:
        model = Trajectory
        fields = [
            "id",
            "agent",
            "parent",
            "channel",
            "group",
            "metadata",
            "session_key",
            "state",
            "title",
            "reward",
            "is_excluded",
            "tags",
            "has_error",
            "n_steps",
            "n_prompt_tokens",
            "n_completion_tokens",
            "started_at",
            "last_step_at",
            "completed_at",
            "base_url",
        ]
        read_only_fields = fields

    def get_base_url(self, trajectory: Trajectory) -> str:
        return f"{settings.CLAW.public_base_url}/t/{trajectory.pk}/v1"


class StepSummarySerializer(serializers.ModelSerializer[Step]):
    """A step without what was said."""

    parent = serializers.CharField(  # type: ignore[assignment]  # the metaclass takes it off
        source="parent_id", allow_null=True, read_only=True
    )
    epoch = serializers.IntegerField(
        allow_null=True, read_only=True, help_text="compactions of the session before it, where the client counts them"
    )
    token_check = serializers.CharField(read_only=True, help_text="why the token ids are doubted; empty: they are not")
    constraints = serializers.CharField(
        read_only=True, help_text="parameters that bent the sampling, so that it is not trained on; empty: none"
    )
    version = serializers.CharField(source="version_id", allow_null=True, read_only=True)
    reward = RewardField()

    class Meta:
        model = Step
        fields = [
            "id",
            "index",
            "choice",
            "parent",
            "chain",
            "epoch",
            "side_call",
            "version",
            "response_id",
            "exchange_id",
            "n_prompt_tokens",
            "n_completion_tokens",
            "finish_reason",
            "status",
            "is_exact",
            "token_check",
            "constraints",
            "is_excluded",
            "reward",
            "client_step_id",
            "metadata",
            "temperature",
            "top_p",
            "top_k",
            "started_at",
            "ended_at",
        ]
        read_only_fields = fields


class StepSerializer(StepSummarySerializer):
    """A step with the messages that went in and the answer that came out, for the schema's sake; see `show_step`."""

    messages = serializers.ListField(child=serializers.JSONField(), read_only=True)
    answer = serializers.JSONField(read_only=True)
    prompt_token_ids = serializers.ListField(child=serializers.IntegerField(), required=False)
    completion_token_ids = serializers.ListField(child=serializers.IntegerField(), required=False)
    logprobs = serializers.ListField(child=serializers.FloatField(), required=False)

    class Meta(StepSummarySerializer.Meta):
        fields = [
            *StepSummarySerializer.Meta.fields,
            "messages",
            "answer",
            "prompt_token_ids",
            "completion_token_ids",
            "logprobs",
        ]


def show_step(view: StepView, *, with_tokens: bool, context: dict[str, Hidden]) -> dict[str, Any]:
    """Return a whole step; ids and log-probs (nats) only where asked, they are long."""
    shown = {**StepSummarySerializer(view.row, context=context).data, "messages": view.messages, "answer": view.answer}
    if with_tokens:
        shown |= {
            "prompt_token_ids": view.prompt_ids,
            "completion_token_ids": view.completion_ids,
            "logprobs": view.logprobs,
        }
    return shown


class TrajectoryDetailSerializer(TrajectorySerializer):
    """A trajectory with its steps in short; `next_after` is the index to ask `/steps` for the rest with."""

    steps = StepSummarySerializer(many=True, read_only=True)
    next_after = serializers.IntegerField(allow_null=True, read_only=True)

    class Meta(TrajectorySerializer.Meta):
        fields = [*TrajectorySerializer.Meta.fields, "steps", "next_after"]
        read_only_fields = fields


class TrajectoryPageSerializer(PageSerializer):
    """A slow search may have `next_before` after fewer items than were asked for."""

    items = TrajectorySerializer(many=True)
    warning = serializers.CharField(
        help_text="what in the search may be a slip: agents and versions that the project has not"
    )


class StepPageSerializer(serializers.Serializer[Any]):
    items = StepSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)


class OpenBodySerializer(StrictSerializer):
    """A key speaks for its own agent; a person names one."""

    agent = serializers.SlugField(required=False, help_text="slug; a key needs none, it has its own")
    channel = serializers.ChoiceField(choices=Channel.choices, default=Channel.TRAIN)
    group = serializers.CharField(max_length=100, allow_blank=True, default="")
    metadata = serializers.DictField(child=serializers.JSONField(allow_null=True), default=dict)


class ListQuerySerializer(PageQuerySerializer):
    q = serializers.CharField(required=False, default="", help_text=SEARCH_HELP, trim_whitespace=False)
    agent = serializers.SlugField(required=False, default="")
    channel = serializers.ChoiceField(choices=Channel.choices, required=False, default="")
    state = serializers.ChoiceField(choices=TrajectoryState.choices, required=False, default="")
    group = serializers.CharField(required=False, default="")
    has_reward = serializers.BooleanField(required=False, allow_null=True, default=None)
    is_excluded = serializers.BooleanField(required=False, allow_null=True, default=None)
    prefix_break = serializers.ChoiceField(
        choices=BREAKS, required=False, default="", help_text="a step's prompt does not go on from its parent: why"
    )


class IndexQuerySerializer(LimitQuerySerializer):
    """Which page of a trajectory's steps a caller asks for."""

    after = WholeNumberField(required=False, default=-1, min_value=-1, help_text="`next_after` of the page before")


class StepsQuerySerializer(IndexQuerySerializer):
    tokens = serializers.BooleanField(required=False, default=False, help_text="add token ids and log-probs")


class ExclusionBodySerializer(StrictSerializer):
    excluded = serializers.BooleanField()
