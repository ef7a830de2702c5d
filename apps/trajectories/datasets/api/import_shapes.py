"""Shapes of imports in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.serializers import LimitQuerySerializer, PageSerializer, StrictSerializer, WholeNumberField
from apps.trajectories.datasets.models import Import, ImportProblem, RowFormat
from apps.trajectories.models import Channel

REST, ALL = "rest", "all"
ON_ERROR = {REST: "the rest is imported", ALL: "nothing is imported"}


class ImportSerializer(serializers.ModelSerializer[Import]):
    """An import: how far it is, and what came of it."""

    agent = serializers.SlugRelatedField(slug_field="slug", read_only=True)  # type: ignore[var-annotated]
    dataset = serializers.CharField(source="dataset_id", allow_null=True, read_only=True)
    format = serializers.CharField(source="row_format", read_only=True)

    class Meta:
        model = Import
        fields = [
            "id",
            "agent",
            "dataset",
            "format",
            "channel",
            "is_all_or_none",
            "is_again",
            "file_name",
            "n_bytes",
            "state",
            "error",
            "n_lines",
            "n_total",
            "n_imported",
            "n_known",
            "n_refused",
            "created_by",
            "created_at",
            "started_at",
            "ended_at",
        ]
        read_only_fields = fields


class ImportPageSerializer(PageSerializer):
    items = ImportSerializer(many=True)


class ImportBodySerializer(StrictSerializer):
    """A form with a file."""

    file = serializers.FileField(
        help_text="JSON lines or Parquet: our exports, OpenAI chat, ShareGPT or Claw-R1 steps", allow_empty_file=True
    )
    agent = serializers.SlugField(required=False, default=None, help_text="slug; a key needs none, it has its own")
    dataset = serializers.CharField(
        required=False, default="", max_length=ID_MAX_LENGTH, help_text="what is imported is added to it"
    )
    format = serializers.ChoiceField(choices=RowFormat.choices, required=False, default=RowFormat.AUTO)
    channel = serializers.ChoiceField(choices=Channel.choices, required=False, default="")
    on_error = serializers.ChoiceField(
        choices=list(ON_ERROR.items()), required=False, default=REST, help_text="when a line is bad"
    )
    again = serializers.BooleanField(
        required=False, default=False, help_text="also import what the project has already"
    )


class ProblemSerializer(serializers.ModelSerializer[ImportProblem]):
    """Why a line was not imported; lines count from 1."""

    class Meta:
        model = ImportProblem
        fields = ["line", "reason"]
        read_only_fields = fields


class ProblemPageSerializer(serializers.Serializer[Any]):
    items = ProblemSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)


class ProblemQuerySerializer(LimitQuerySerializer):
    after = WholeNumberField(
        required=False, default=0, min_value=0, max_value=2**62, help_text="`next_after` of the page before"
    )
