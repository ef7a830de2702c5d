"""Shapes of exports in the REST API. They show and check; they never save."""

from typing import Any

from django.conf import settings
from django.urls import reverse
from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.serializers import PageSerializer, StrictSerializer
from apps.trajectories.datasets.exporting import sign_link
from apps.trajectories.datasets.models import Export, FileFormat, Shape
from apps.trajectories.datasets.sources import warn_of_export
from apps.trajectories.search.language import MAX_LENGTH


class ExportSerializer(serializers.ModelSerializer[Export]):
    """An export. `download_url` is there when it is done, for whoever may export, and works for an hour. `n_hidden`
    trajectories are left out, since whoever made the export reviews them blind."""

    dataset = serializers.CharField(source="dataset_id", allow_null=True, read_only=True)
    snapshot = serializers.CharField(source="snapshot_id", allow_null=True, read_only=True)
    format = serializers.CharField(source="file_format", read_only=True)
    download_url = serializers.SerializerMethodField()

    class Meta:
        model = Export
        fields = [
            "id",
            "snapshot",
            "dataset",
            "query",
            "shape",
            "format",
            "state",
            "error",
            "n_total",
            "n_done",
            "n_gone",
            "n_hidden",
            "n_rows",
            "n_left_out",
            "n_bytes",
            "created_by",
            "created_at",
            "started_at",
            "ended_at",
            "expires_at",
            "download_url",
        ]
        read_only_fields = fields

    def get_download_url(self, export: Export) -> str | None:
        link = sign_link(export) if self.context.get("with_link", True) else None
        if link is None:
            return None
        return f"{settings.CLAW.public_base_url}{reverse('api-export-file', args=[export.pk])}?token={link[0]}"


class StartedExportSerializer(ExportSerializer):
    """An export that begins. `warning`: what in its search may be a slip, as agents that the project has not."""

    warning = serializers.SerializerMethodField()

    class Meta(ExportSerializer.Meta):
        fields = [*ExportSerializer.Meta.fields, "warning"]
        read_only_fields = fields

    def get_warning(self, export: Export) -> str:
        return warn_of_export(export)


class ExportPageSerializer(PageSerializer):
    items = ExportSerializer(many=True)


class ExportBodySerializer(StrictSerializer):
    """One of snapshot, dataset and query says what is exported."""

    snapshot = serializers.CharField(max_length=ID_MAX_LENGTH, allow_blank=True, default="")
    dataset = serializers.CharField(max_length=ID_MAX_LENGTH, allow_blank=True, default="")
    query = serializers.CharField(
        allow_blank=True,
        allow_null=True,
        max_length=MAX_LENGTH,
        default=None,
        help_text='a search; "" finds everything',
    )
    shape = serializers.ChoiceField(choices=Shape.choices)
    format = serializers.ChoiceField(choices=FileFormat.choices, default=FileFormat.JSONL)


class TokenRowSerializer(serializers.Serializer[Any]):
    """One step. `mask` is 1 for completion ids that may be trained on; the columns of an exported row, all told."""

    trajectory = serializers.CharField()
    index = serializers.IntegerField()
    prompt_ids = serializers.ListField(child=serializers.IntegerField())
    completion_ids = serializers.ListField(child=serializers.IntegerField())
    mask = serializers.ListField(child=serializers.IntegerField())
    logprobs = serializers.ListField(child=serializers.FloatField(), allow_null=True)
    version = serializers.CharField(allow_null=True)
    reward = serializers.FloatField(allow_null=True)
    trajectory_reward = serializers.FloatField(allow_null=True)


class TokenPageSerializer(serializers.Serializer[Any]):
    items = TokenRowSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)
    shape = serializers.CharField()
