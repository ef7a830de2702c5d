"""The pool for staff: to look at. It is the truth, so nothing here is edited."""

from django.contrib import admin

from apps.core.admin import ReadOnlyAdmin
from apps.trajectories.datasets.models import Dataset, Export, Import, Snapshot
from apps.trajectories.models import Exchange, Step, Trajectory


@admin.register(Exchange)
class ExchangeAdmin(ReadOnlyAdmin):
    list_display = ("id", "project_id", "agent_id", "status", "folded_at", "fold_error", "ended_at")
    list_filter = ("status", "dialect")
    search_fields = ("id", "response_id", "trajectory_id")
    exclude = (
        "request",
        "headers",
        "response",
        "chat_request",
        "chat_response",
        "prompt_token_ids",
        "completion_token_ids",
        "completion_logprobs",
        "sampling",
    )


@admin.register(Trajectory)
class TrajectoryAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "agent", "channel", "state", "reward", "n_steps", "title")
    list_filter = ("state", "channel")
    list_select_related = ("project", "agent")
    search_fields = ("id",)


@admin.register(Step)
class StepAdmin(ReadOnlyAdmin):
    list_display = ("id", "trajectory_id", "index", "status", "side_call", "reward", "ended_at")
    search_fields = ("id", "response_id", "trajectory_id")
    ordering = ("-id",)
    exclude = (
        "tail_token_ids",
        "completion_token_ids",
        "logprobs",
        "tail_messages",
        "answer",
        "answer_digests",
    )


@admin.register(Dataset)
class DatasetAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "name", "n_trajectories", "created_by", "created_at")
    list_select_related = ("project",)
    search_fields = ("id", "name")


@admin.register(Snapshot)
class SnapshotAdmin(ReadOnlyAdmin):
    list_display = ("id", "dataset", "number", "n_trajectories", "mean_reward", "created_by", "created_at")
    list_select_related = ("dataset",)
    search_fields = ("id",)


@admin.register(Export)
class ExportAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "shape", "file_format", "state", "n_done", "n_total", "created_by", "created_at")
    list_filter = ("state", "shape")
    list_select_related = ("project",)
    search_fields = ("id",)


@admin.register(Import)
class ImportAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "file_name", "state", "n_imported", "n_refused", "created_by", "created_at")
    list_filter = ("state",)
    list_select_related = ("project",)
    search_fields = ("id", "file_name")
