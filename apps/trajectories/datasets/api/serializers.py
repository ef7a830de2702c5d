"""Shapes of datasets and snapshots in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.serializers import LimitQuerySerializer, PageSerializer, StrictSerializer
from apps.trajectories.api.rewards import RewardField, is_hidden
from apps.trajectories.api.serializers import TrajectorySerializer
from apps.trajectories.datasets import services
from apps.trajectories.datasets.models import Dataset, Snapshot, SnapshotEntry
from apps.trajectories.datasets.queries import KINDS
from apps.trajectories.search.language import MAX_LENGTH


class DatasetSerializer(serializers.ModelSerializer[Dataset]):
    """A dataset without its trajectories."""

    class Meta:
        model = Dataset
        fields = ["id", "name", "description", "n_trajectories", "created_by", "created_at"]
        read_only_fields = fields


class BinSerializer(serializers.Serializer[Any]):
    low = serializers.FloatField()
    high = serializers.FloatField()
    n = serializers.IntegerField()


class TotalsSerializer(serializers.Serializer[Any]):
    """Sums over the trajectories; `is_partial`: over the latest 10,000 of them. Those whose rewards are hidden from the
    caller (blind review) count as without one."""

    n_trajectories = serializers.IntegerField()
    n_rewarded = serializers.IntegerField()
    mean_reward = serializers.FloatField(allow_null=True)
    n_steps = serializers.IntegerField()
    n_prompt_tokens = serializers.IntegerField()
    n_completion_tokens = serializers.IntegerField()
    histogram = BinSerializer(many=True, help_text="rewards in tenths of -1 to 1")
    is_partial = serializers.BooleanField()


class DatasetDetailSerializer(DatasetSerializer):
    """A dataset with sums over its trajectories."""

    totals = TotalsSerializer(read_only=True)

    class Meta(DatasetSerializer.Meta):
        fields = [*DatasetSerializer.Meta.fields, "totals"]
        read_only_fields = fields


class DatasetPageSerializer(PageSerializer):
    items = DatasetSerializer(many=True)


class MemberPageSerializer(PageSerializer):
    items = TrajectorySerializer(many=True)


class SnapshotSerializer(serializers.ModelSerializer[Snapshot]):
    """A snapshot without its entries. While it holds trajectories that the caller reviews blind, `n_rewarded` and
    `mean_reward` are of the others and `checksum` is empty."""

    dataset = serializers.CharField(source="dataset_id", read_only=True)
    queries = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta:
        model = Snapshot
        fields = [
            "id",
            "dataset",
            "number",
            "note",
            "queries",
            "created_by",
            "created_at",
            "n_trajectories",
            "n_rewarded",
            "mean_reward",
            "n_steps",
            "n_prompt_tokens",
            "n_completion_tokens",
            "checksum",
        ]
        read_only_fields = fields


class SnapshotPageSerializer(PageSerializer):
    items = SnapshotSerializer(many=True)


class EntrySerializer(serializers.ModelSerializer[SnapshotEntry]):
    """One trajectory as it was when the snapshot was taken."""

    trajectory = serializers.CharField(source="trajectory_id", read_only=True)
    reward = RewardField()
    step_rewards = serializers.SerializerMethodField()

    class Meta:
        model = SnapshotEntry
        fields = [
            "trajectory",
            "reward",
            "step_rewards",
            "n_steps",
            "n_prompt_tokens",
            "n_completion_tokens",
            "content",
        ]
        read_only_fields = fields

    def get_step_rewards(self, entry: SnapshotEntry) -> dict[str, float]:
        return {} if is_hidden(entry, self.context) else entry.step_rewards


class EntryPageSerializer(serializers.Serializer[Any]):
    items = EntrySerializer(many=True)
    next_after = serializers.CharField(allow_null=True)


class DifferenceSerializer(serializers.Serializer[Any]):
    """`before` is None for what was added, `after` for what was removed."""

    trajectory = serializers.CharField(source="trajectory_id")
    kind = serializers.ChoiceField(choices=KINDS)
    reward_before = RewardField()
    reward_after = RewardField()
    n_steps_before = serializers.IntegerField(allow_null=True)
    n_steps_after = serializers.IntegerField(allow_null=True)


class DiffPageSerializer(serializers.Serializer[Any]):
    counts = serializers.DictField(child=serializers.IntegerField(), help_text="by kind, over all pages")
    items = DifferenceSerializer(many=True)
    next_after = serializers.CharField(allow_null=True)


class DatasetBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=services.MAX_NAME)
    description = serializers.CharField(allow_blank=True, max_length=services.MAX_DESCRIPTION, default="")


class DatasetChangeSerializer(StrictSerializer):
    name = serializers.CharField(max_length=services.MAX_NAME, required=False, default=None)
    description = serializers.CharField(
        allow_blank=True, max_length=services.MAX_DESCRIPTION, required=False, default=None
    )


class MembersBodySerializer(StrictSerializer):
    """Trajectories by their ids."""

    trajectories = serializers.ListField(
        child=serializers.CharField(max_length=ID_MAX_LENGTH), min_length=1, max_length=services.MAX_IDS
    )


class AdditionBodySerializer(StrictSerializer):
    """Trajectories by their ids, or all that a search finds now."""

    trajectories = serializers.ListField(
        child=serializers.CharField(max_length=ID_MAX_LENGTH), max_length=services.MAX_IDS, default=list
    )
    query = serializers.CharField(
        allow_blank=True,
        allow_null=True,
        max_length=MAX_LENGTH,
        default=None,
        help_text='a search; "" finds everything',
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if bool(attrs["trajectories"]) == (attrs["query"] is not None):
            raise serializers.ValidationError({"trajectories": ["name trajectories, or a query, and not both"]})
        return attrs


class AddedSerializer(serializers.Serializer[Any]):
    n_added = serializers.IntegerField(help_text="how many were not in it before")
    n_trajectories = serializers.IntegerField(help_text="how many the dataset has now")
    warning = serializers.CharField(
        help_text="what in the search may be a slip: agents and versions that the project has not"
    )


class RemovedSerializer(serializers.Serializer[Any]):
    n_removed = serializers.IntegerField()
    n_trajectories = serializers.IntegerField(help_text="how many the dataset has now")


class SnapshotBodySerializer(StrictSerializer):
    note = serializers.CharField(allow_blank=True, max_length=services.MAX_NOTE, default="")


class AfterQuerySerializer(LimitQuerySerializer):
    after = serializers.CharField(
        required=False, default=None, max_length=ID_MAX_LENGTH, help_text="`next_after` of the page before"
    )


class DiffQuerySerializer(AfterQuerySerializer):
    base = serializers.CharField(max_length=ID_MAX_LENGTH, help_text="the snapshot to compare with")
    kind = serializers.ChoiceField(choices=KINDS, required=False, default="")
