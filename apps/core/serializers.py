"""What the REST API's input shapes have in common: a field that is not known is an error, not silence."""

from typing import Any

from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.paging import MAX_LIMIT, Page

PARAMETER = "parameter"  # what a field is called that stands in an address
PAGING = ("limit", "before", "after")


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not know, by name."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            unknown = sorted(set(data) - set(self.fields))
            if unknown:
                raise serializers.ValidationError({str(unknown[0]): [self._tell_unknown(unknown[0])]})
        return super().to_internal_value(data)

    def _tell_unknown(self, name: Any) -> str:
        known = ", ".join(sorted(self.fields))
        noun = self.context.get("noun", "field")
        is_unpaged = noun == PARAMETER and name in PAGING
        return f"unknown {noun}{', since what is here is not paged' if is_unpaged else ''}; there are {known}"


class ProjectQuerySerializer(StrictSerializer):
    """Which project a caller means."""

    project = serializers.SlugField(required=False, default=None, help_text="slug; a key needs none")


class WholeNumberField(serializers.IntegerField):
    """A whole number in an address, in the digits 0 to 9: Python reads other scripts' digits and 1_0 too."""

    default_error_messages = {"invalid": "must be a whole number; leave it out for the usual one"}

    def to_internal_value(self, data: Any) -> int:
        """Return the number; raises DRF's ValidationError."""
        if isinstance(data, str) and not (data.isascii() and data.removeprefix("-").isdecimal()):
            self.fail("invalid")
        return super().to_internal_value(data)


class LimitQuerySerializer(StrictSerializer):
    """How much of a list a caller asks for."""

    limit = WholeNumberField(required=False, default=50, min_value=1, max_value=MAX_LIMIT)


class BeforeQuerySerializer(LimitQuerySerializer):
    """Which page of a list, newest first, a caller asks for."""

    before = serializers.CharField(
        required=False, default=None, max_length=ID_MAX_LENGTH, help_text="`next_before` of the page before"
    )


class PageQuerySerializer(ProjectQuerySerializer, BeforeQuerySerializer):
    """Which page of a project's things a caller asks for."""


class PageSerializer(serializers.Serializer[Any]):
    """One page of a list, newest first; who inherits says what `items` are."""

    next_before = serializers.CharField(allow_null=True, help_text="ask for the page after with it; null at the end")


def show_page(shape: type[serializers.BaseSerializer[Any]], page: Page[Any], **context: Any) -> dict[str, Any]:
    """Return what `PageSerializer` tells of a page whose items have this shape."""
    return {"items": shape(page.items, many=True, context=context).data, "next_before": page.next_before}


def read_fields(shape: type[StrictSerializer], data: Any) -> dict[str, Any]:
    """Return the checked fields of a body or of query parameters; raises DRF's ValidationError."""
    is_query = hasattr(data, "dict")
    serializer = shape(data=data.dict() if is_query else data, context={"noun": PARAMETER} if is_query else {})
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)
