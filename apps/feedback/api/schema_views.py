"""Score schemas over REST: what may be said in a project, what it is worth, and every version of it."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.core.serializers import ProjectQuerySerializer, StrictSerializer, read_fields
from apps.feedback import schemas
from apps.feedback.models import ScoreSchema
from apps.feedback.rescoring import change_schema
from apps.feedback.score_schema import DEFAULT, FieldKind

LISTED = 100


class ChoiceShape(serializers.Serializer[Any]):
    """One answer to choose. Without a reward it is kept and counts for nothing."""

    name = serializers.CharField()
    title = serializers.CharField(required=False)
    reward = serializers.FloatField(required=False, allow_null=True)


class FieldShape(serializers.Serializer[Any]):
    """One question; `docs/rewards.md` tells what its settings mean."""

    name = serializers.CharField(help_text="lower case letters, digits and _")
    kind = serializers.ChoiceField(choices=[kind.value for kind in FieldKind])
    title = serializers.CharField(required=False)
    help = serializers.CharField(required=False)
    weight = serializers.FloatField(required=False, help_text="0 to 100; 0: kept and counts for nothing")
    low = serializers.FloatField(required=False, allow_null=True)
    high = serializers.FloatField(required=False, allow_null=True)
    low_reward = serializers.FloatField(required=False)
    high_reward = serializers.FloatField(required=False)
    choices = ChoiceShape(many=True, required=False)
    many = serializers.BooleanField(required=False)  # type: ignore[assignment]  # the metaclass takes it off


class DefinitionShape(serializers.Serializer[Any]):
    """Fields, and the tiers of trust: the first in which anybody spoke decides."""

    fields = FieldShape(many=True, required=False)  # type: ignore[assignment]  # the metaclass takes it off
    trust = serializers.ListField(
        child=serializers.DictField(child=serializers.FloatField()),
        required=False,
        help_text="source and weight, tier by tier: [{human: 1, judge: 0.3}, {rule: 1}]",
    )


class ScoreSchemaSerializer(serializers.Serializer[Any]):
    """One version. Number 0 is what a project has that never made one of its own; it has no id."""

    id = serializers.CharField(allow_null=True)
    number = serializers.IntegerField()
    definition = DefinitionShape()
    note = serializers.CharField()
    author = serializers.CharField()
    created_at = serializers.DateTimeField(allow_null=True)


class ScoreSchemasSerializer(serializers.Serializer[Any]):
    """The versions, the newest first: that one is in force."""

    items = ScoreSchemaSerializer(many=True)


class NewScoreSchemaSerializer(ScoreSchemaSerializer):
    """A new version in force, and the bulk job by which rewards follow."""

    job = serializers.CharField()


class SchemaBodySerializer(StrictSerializer):
    """For the schema's sake the shape; `score_schema.read_schema` checks it."""

    definition = DefinitionShape()
    note = serializers.CharField(required=False, allow_blank=True, default="", max_length=schemas.MAX_NOTE)


class _RawSchemaBodySerializer(SchemaBodySerializer):
    definition = serializers.DictField()  # type: ignore[assignment]


def show_schema(row: ScoreSchema) -> dict[str, Any]:
    """Return one version as data."""
    author = row.author.email if row.author else str(row.key or "")
    shown = {"id": row.pk, "number": row.number, "definition": row.definition, "note": row.note}
    return {**shown, "author": author, "created_at": row.created_at}


_BUILT_IN = {
    "id": None,
    "number": 0,
    "definition": DEFAULT.model_dump(mode="json"),
    "note": "",
    "author": "",
    "created_at": None,
}


class ScoreSchemasView(APIView):
    """The score schema of a project."""

    @extend_schema(
        operation_id="score_schemas_list", parameters=[ProjectQuerySerializer], responses=ScoreSchemasSerializer
    )
    def get(self, request: Request) -> Response:
        """List the versions, the newest first: that one is in force."""
        project = find_project(caller_of(request), read_fields(ProjectQuerySerializer, request.query_params)["project"])
        rows = [show_schema(row) for row in schemas.list_schemas(project)[:LISTED]]
        return Response({"items": rows or [_BUILT_IN]})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=SchemaBodySerializer, responses={201: NewScoreSchemaSerializer}
    )
    def post(self, request: Request) -> Response:
        """Put a new version in force. Rewards are computed anew in the background; what was said stays."""
        caller = caller_of(request)
        project = find_project(caller, read_fields(ProjectQuerySerializer, request.query_params)["project"])
        body = read_fields(_RawSchemaBodySerializer, request.data)
        row, job = change_schema(caller=caller, project=project, **body)
        return Response({**show_schema(row), "job": job.pk}, status=status.HTTP_201_CREATED)
