"""Shapes of runs in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.paging import MAX_LIMIT
from apps.core.serializers import StrictSerializer, WholeNumberField
from apps.training.api.config_fields import RecipeField, SelectionField
from apps.training.models import Batch, Metric, Run, RunEvent

BIGGEST = 2**31 - 1  # what the columns hold


class RunSerializer(serializers.ModelSerializer[Run]):
    """One run: what it was asked, how far it is, how it ended."""

    project = serializers.CharField(source="project.slug", read_only=True)
    policy = serializers.CharField(source="policy.slug", read_only=True)
    start_version = serializers.CharField(source="start_version_id", read_only=True)
    status_line = serializers.CharField(source="describe_now", read_only=True)
    recipe = RecipeField(read_only=True)
    selection = SelectionField(read_only=True)

    class Meta:
        model = Run
        fields = [
            "id",
            "name",
            "project",
            "policy",
            "start_version",
            "state",
            "status_line",
            "error",
            "n_steps",
            "steps_done",
            "recipe",
            "selection",
            "created_at",
            "started_at",
            "ended_at",
        ]
        read_only_fields = fields


class LaunchBodySerializer(StrictSerializer):
    """What to train with which settings. An unknown setting is refused."""

    name = serializers.CharField(max_length=100, required=False, allow_blank=True, default="")
    recipe = RecipeField(required=False, default=dict, help_text="what is left out gets its default")
    selection = SelectionField(required=False, default=dict, help_text="filters; {} is the channel train")
    idempotency_key = serializers.CharField(max_length=100, required=False, allow_blank=True, default="")


class EstimateBodySerializer(StrictSerializer):
    """The settings of a run that one thinks of."""

    recipe = RecipeField(required=False, default=dict, help_text="what is left out gets its default")


class EstimatePartsSerializer(serializers.Serializer[Any]):
    """Bytes of one trainer process: `device` by part where it computes, `host` beside it; `disk` of the whole run."""

    n_parameters = serializers.IntegerField()
    n_trainable = serializers.IntegerField()
    device = serializers.DictField(child=serializers.IntegerField())
    device_total = serializers.IntegerField()
    host = serializers.IntegerField()
    disk = serializers.IntegerField()
    seconds_to_start = serializers.FloatField(allow_null=True)
    seconds_per_step = serializers.FloatField(allow_null=True)


class RoomSerializer(serializers.Serializer[Any]):
    """Bytes that there are: of a GPU, of a host, on the disk of the runs; null where nobody has told."""

    device = serializers.IntegerField(allow_null=True)
    host = serializers.IntegerField(allow_null=True)
    disk = serializers.IntegerField(allow_null=True)


class OutlookSerializer(serializers.Serializer[Any]):
    """`fits` is null where too little is known; `problem` says why it does not fit, or what is not known."""

    estimate = EstimatePartsSerializer(allow_null=True)
    room = RoomSerializer()
    device = serializers.CharField()
    fits = serializers.BooleanField(allow_null=True)
    problem = serializers.CharField()
    seconds = serializers.FloatField(allow_null=True)


class MetricsQuerySerializer(StrictSerializer):
    since_step = WholeNumberField(required=False, default=0, min_value=0, max_value=BIGGEST)


class EventsQuerySerializer(StrictSerializer):
    after = WholeNumberField(required=False, default=0, min_value=0, max_value=BIGGEST)
    limit = WholeNumberField(required=False, default=MAX_LIMIT, min_value=1, max_value=MAX_LIMIT)


class BatchesQuerySerializer(StrictSerializer):
    after_step = WholeNumberField(required=False, default=0, min_value=0, max_value=BIGGEST)
    limit = WholeNumberField(required=False, default=MAX_LIMIT, min_value=1, max_value=MAX_LIMIT)


class MetricSerializer(serializers.ModelSerializer[Metric]):
    """One point of every curve."""

    attempt = serializers.IntegerField(source="attempt.number", read_only=True)

    class Meta:
        model = Metric
        fields = ["step", "attempt", "at", "values"]
        read_only_fields = fields


class RunEventSerializer(serializers.ModelSerializer[RunEvent]):
    """A line of the run's history."""

    class Meta:
        model = RunEvent
        fields = ["id", "kind", "message", "at"]
        read_only_fields = fields


class BatchSerializer(serializers.ModelSerializer[Batch]):
    """What one step was trained on."""

    version = serializers.CharField(source="version_id", allow_null=True, read_only=True)

    class Meta:
        model = Batch
        fields = [
            "step",
            "state",
            "version",
            "reward_mean",
            "staleness_mean",
            "n_samples",
            "discards",
            "leased_at",
            "trained_at",
        ]
        read_only_fields = fields


class RunPageSerializer(serializers.Serializer[Any]):
    """Newest first; ask for the next page with `?before=<next_before>`."""

    items = RunSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)


class MetricsSerializer(serializers.Serializer[Any]):
    """Points in order of steps; ask for what is newer with `?since_step=<last step>`."""

    items = MetricSerializer(many=True)


class EventsSerializer(serializers.Serializer[Any]):
    """Oldest first; ask for what is newer with `?after=<last id>`."""

    items = RunEventSerializer(many=True)


class BatchesSerializer(serializers.Serializer[Any]):
    """In order of steps."""

    items = BatchSerializer(many=True)
