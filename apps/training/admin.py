"""The operator's view of runs. Nothing is edited here: runs change through services."""

from django.contrib import admin

from apps.core.admin import ReadOnlyAdmin
from apps.training.models import Attempt, Batch, Run, RunEvent


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
