"""Shapes of saved views in the REST API."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.trajectories.search.models import SavedView


class SavedViewSerializer(serializers.ModelSerializer[SavedView]):
    """A name for a search: `query` is what `GET /api/v1/trajectories?q=` takes."""

    owner = serializers.CharField(source="owner.email", allow_null=True, default=None, read_only=True)

    class Meta:
        model = SavedView
        fields = ["id", "name", "query", "owner", "created_at"]
        read_only_fields = fields


class SavedViewsSerializer(serializers.Serializer[Any]):
    items = SavedViewSerializer(many=True)


class SavedViewBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=60)
    query = serializers.CharField(allow_blank=True, default="", trim_whitespace=False)
