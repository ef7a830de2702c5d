"""Shapes of bulk jobs in the REST API."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer, WholeNumberField
from apps.feedback.bulk import ACTIONS
from apps.trajectories.bulk.models import BulkChange, BulkJob
from apps.trajectories.bulk.services import MAX_IDS, can_undo


class BulkJobSerializer(serializers.ModelSerializer[BulkJob]):
    """One change to many trajectories and how far it is. `n_total` is null until it has been counted."""

    author = serializers.CharField(source="author.email", allow_null=True, default=None, read_only=True)
    can_undo = serializers.SerializerMethodField()

    class Meta:
        model = BulkJob
        fields = [
            "id",
            "action",
            "settings",
            "query",
            "author",
            "state",
            "n_total",
            "n_done",
            "n_changed",
            "n_failed",
            "n_undone",
            "can_undo",
            "created_at",
            "ended_at",
        ]
        read_only_fields = fields

    def get_can_undo(self, job: BulkJob) -> bool:
        return can_undo(job, ACTIONS[job.action])


class BulkJobPageSerializer(serializers.Serializer[Any]):
    items = BulkJobSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)


class BulkFailureSerializer(serializers.ModelSerializer[BulkChange]):
    """A trajectory that the job could not change, and why."""

    trajectory = serializers.CharField(source="trajectory_id", read_only=True)

    class Meta:
        model = BulkChange
        fields = ["trajectory", "error"]
        read_only_fields = fields


class BulkFailurePageSerializer(serializers.Serializer[Any]):
    items = BulkFailureSerializer(many=True)
    next_after = serializers.IntegerField(allow_null=True)


class BulkBodySerializer(StrictSerializer):
    """Either `ids` or `q`. `settings` is what the action is told: value and text, tag, channel, dataset."""

    action = serializers.ChoiceField(choices=list(ACTIONS))
    settings = serializers.DictField(child=serializers.JSONField(), default=dict)
    ids = serializers.ListField(
        child=serializers.CharField(max_length=40), required=False, default=list, max_length=MAX_IDS
    )
    q = serializers.CharField(
        required=False,
        default=None,
        allow_null=True,
        allow_blank=True,
        trim_whitespace=False,
        help_text='all that this search finds now; "" is everything',
    )


class FailuresQuerySerializer(StrictSerializer):
    after = WholeNumberField(
        required=False, default=0, min_value=0, max_value=2**63 - 1, help_text="`next_after` of the page before"
    )
