"""The operator's view of runs. Nothing is edited here: runs change through services."""

from django.contrib import admin
from django.http import HttpRequest

from apps.training.models import Attempt, Batch, Run, RunEvent


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Shows rows that only services may change."""

    def has_add_permission(self, _request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, _request: HttpRequest, _obj: object = None) -> bool:
        return False

    def has_delete_permission(self, _request: HttpRequest, _obj: object = None) -> bool:
        return False


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = ["id", "name", "project", "state", "steps_done", "n_steps", "created_at"]
    list_filter = ["state"]


@admin.register(Attempt)
class AttemptAdmin(ReadOnlyAdmin):
    list_display = ["run", "number", "state", "host", "heartbeat_at", "exit_code"]


@admin.register(Batch)
class BatchAdmin(ReadOnlyAdmin):
    list_display = ["run", "step", "state", "reward_mean", "n_samples", "leased_at", "trained_at"]


@admin.register(RunEvent)
class RunEventAdmin(ReadOnlyAdmin):
    list_display = ["run", "kind", "message", "at"]
