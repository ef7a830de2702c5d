"""What the REST API's input shapes have in common: a field that is not known is an error, not silence."""

from typing import Any

from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.paging import MAX_LIMIT


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know, by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                known = ", ".join(sorted(self.fields))
                raise serializers.ValidationError({str(unknown[0]): [f"unknown field; there are {known}"]})
        return super().to_internal_value(data)


class PageQuerySerializer(StrictSerializer):
    """Which page of a project's things a caller asks for."""

    project = serializers.SlugField(required=False, default=None, help_text="slug; a key needs none")
    before = serializers.CharField(
        required=False, default=None, max_length=ID_MAX_LENGTH, help_text="`next_before` of the page before"
    )
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=MAX_LIMIT)


class ProjectQuerySerializer(StrictSerializer):
    """Which project a caller means."""

    project = serializers.SlugField(required=False, default=None, help_text="slug; a key needs none")


def read_fields(shape: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """Return the checked fields of a body or of query parameters; raises DRF's ValidationError."""
    if hasattr(data, "dict"):  # query parameters
        data = data.dict()
    serializer = shape(data=data)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)
