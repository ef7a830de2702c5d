"""Shapes of graders in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.feedback.graders.kinds import KINDS
from apps.feedback.graders.models import Backfill, DryRun, Grader, GraderVersion
from apps.feedback.graders.services import MAX_DRY_RUN, MAX_QUERY
from apps.feedback.score_schema import REWARD_FIELD
from apps.trajectories.api.token_fields import FiniteFloatField


class GraderKindSerializer(serializers.Serializer[Any]):
    """One kind: what it does, as which source it speaks, and its settings as a JSON schema."""

    name = serializers.CharField()
    words = serializers.CharField()
    help = serializers.CharField()
    source = serializers.CharField()  # type: ignore[assignment]  # the metaclass takes it off
    settings = serializers.DictField()


class GraderKindsSerializer(serializers.Serializer[Any]):
    items = GraderKindSerializer(many=True)


class GraderVersionSerializer(serializers.ModelSerializer[GraderVersion]):
    """What a grader does. Never changed."""

    grader = serializers.CharField(source="grader_id", read_only=True)
    author = serializers.SerializerMethodField()

    class Meta:
        model = GraderVersion
        fields = ["id", "grader", "number", "settings", "field", "query", "sample", "author", "created_at"]
        read_only_fields = fields

    def get_author(self, version: GraderVersion) -> str:
        return _author(version)


class GraderSerializer(serializers.ModelSerializer[Grader]):
    """A grader; `live` is the number of the version that is switched on."""

    live = serializers.IntegerField(source="live.number", allow_null=True, default=None, read_only=True)

    class Meta:
        model = Grader
        fields = ["id", "name", "kind", "live", "switched_on_at", "created_at", "archived_at"]
        read_only_fields = fields


class GradersSerializer(serializers.Serializer[Any]):
    items = GraderSerializer(many=True)


class GraderVersionsSerializer(serializers.Serializer[Any]):
    """The versions, the newest first."""

    items = GraderVersionSerializer(many=True)


class NewGraderSerializer(GraderSerializer):
    """A new grader with its first version, and a webhook's secret: it is shown this once."""

    version = GraderVersionSerializer()
    secret = serializers.CharField(help_text="signs the webhook's calls; empty for other kinds")

    class Meta(GraderSerializer.Meta):
        fields = [*GraderSerializer.Meta.fields, "version", "secret"]


class SecretSerializer(serializers.Serializer[Any]):
    secret = serializers.CharField()


class VersionBodySerializer(StrictSerializer):
    settings = serializers.DictField(child=serializers.JSONField(allow_null=True), required=False, default=dict)
    field = serializers.CharField(
        required=False, default=REWARD_FIELD, max_length=60, help_text="of the score schema: what its labels answer"
    )
    query = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=MAX_QUERY,
        help_text="in the search language: which trajectories it grades",
    )
    sample = FiniteFloatField(
        required=False, default=1.0, help_text="the part of them that it grades: above 0, at most 1"
    )


class GraderBodySerializer(VersionBodySerializer):
    name = serializers.CharField(max_length=60, help_text="lower case letters, digits, - and _")
    kind = serializers.ChoiceField(choices=list(KINDS))


class DryRunBodySerializer(StrictSerializer):
    n = serializers.IntegerField(required=False, default=20, min_value=1, max_value=MAX_DRY_RUN)


class GraderAgreementSerializer(serializers.Serializer[Any]):
    """How far the grader and people agree on what both judged."""

    n = serializers.IntegerField()
    n_same = serializers.IntegerField(help_text="have the same sign")
    kappa = serializers.FloatField(allow_null=True, help_text="Cohen's, over below, at and above zero")
    correlation = serializers.FloatField(allow_null=True, help_text="Pearson's")
    mean_difference = serializers.FloatField(allow_null=True, help_text="of the grader's values above people's")


class DryResultSerializer(serializers.Serializer[Any]):
    trajectory = serializers.CharField()
    title = serializers.CharField()
    step = serializers.CharField(allow_null=True)
    answer = serializers.CharField()
    value = serializers.JSONField(allow_null=True)
    reward = serializers.FloatField(allow_null=True)
    text = serializers.CharField()
    hint = serializers.CharField()
    problem = serializers.CharField(help_text="why there is no value")
    people = serializers.FloatField(allow_null=True, help_text="the mean of what people said is worth, -1 to 1")
    people_said = serializers.ListField(
        child=serializers.JSONField(), default=list, help_text="what each of them said, as they said it"
    )


class DryRunSerializer(serializers.ModelSerializer[DryRun]):
    """A version tried on a sample. No label is written."""

    version = serializers.IntegerField(source="version.number", read_only=True)
    grader = serializers.CharField(source="version.grader_id", read_only=True)
    results = DryResultSerializer(many=True, read_only=True)
    agreement = serializers.SerializerMethodField()

    class Meta:
        model = DryRun
        fields = [
            "id",
            "grader",
            "version",
            "state",
            "n_wanted",
            "results",
            "agreement",
            "error",
            "created_at",
            "ended_at",
        ]
        read_only_fields = fields

    def get_agreement(self, dry_run: DryRun) -> dict[str, Any] | None:
        return dry_run.agreement or None


class BackfillBodySerializer(StrictSerializer):
    query = serializers.CharField(
        required=False, allow_blank=True, default=None, max_length=MAX_QUERY, help_text="default: the version's own"
    )


class ProgressSerializer(serializers.Serializer[Any]):
    """In trajectories. `n_total` grows until all are lined up."""

    n_total = serializers.IntegerField()
    n_waiting = serializers.IntegerField()
    n_graded = serializers.IntegerField()
    n_skipped = serializers.IntegerField()
    n_failed = serializers.IntegerField()


class BackfillSerializer(serializers.ModelSerializer[Backfill]):
    """A version at work on what was in the pool before."""

    version = serializers.IntegerField(source="version.number", read_only=True)
    grader = serializers.CharField(source="version.grader_id", read_only=True)
    progress = ProgressSerializer(read_only=True)

    class Meta:
        model = Backfill
        fields = ["id", "grader", "version", "query", "state", "is_lined_up", "progress", "created_at", "ended_at"]
        read_only_fields = fields


def _author(row: GraderVersion) -> str:
    if row.author is not None:
        return row.author.email
    return str(row.key) if row.key is not None else ""
