"""Labels, preferences, score schemas and graders for staff: append-only, so nothing here is edited."""

from django.contrib import admin

from apps.core.admin import ReadOnlyAdmin
from apps.feedback.graders.models import Grader, GraderVersion, Grading
from apps.feedback.models import Label, ScoreSchema
from apps.feedback.preferences.models import Preference
from apps.feedback.thumbs.models import ThumbToken


@admin.register(Label)
class LabelAdmin(ReadOnlyAdmin):
    list_display = (
        "id",
        "trajectory_id",
        "step_id",
        "source",
        "field",
        "value",
        "author",
        "superseded_by_id",
        "created_at",
    )
    list_filter = ("source",)
    list_select_related = ("author",)
    search_fields = ("id", "trajectory_id", "step_id")


@admin.register(Preference)
class PreferenceAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "trajectory_id", "step_id", "source", "author", "is_tie", "is_undo", "created_at")
    list_filter = ("kind", "source")
    list_select_related = ("author",)
    search_fields = ("id", "trajectory_id", "step_id")


@admin.register(Grader)
class GraderAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "name", "kind", "live", "switched_on_at", "created_at")
    list_filter = ("kind",)
    list_select_related = ("project", "live__grader")
    exclude = ("sealed_secret",)


@admin.register(GraderVersion)
class GraderVersionAdmin(ReadOnlyAdmin):
    list_display = ("id", "grader", "number", "field", "query", "sample", "author", "created_at")
    list_select_related = ("grader", "author")


@admin.register(ThumbToken)
class ThumbTokenAdmin(ReadOnlyAdmin):
    list_display = ("id", "agent", "name", "per_minute", "last_used_at", "disabled_at")
    list_select_related = ("agent",)


@admin.register(Grading)
class GradingAdmin(ReadOnlyAdmin):
    list_display = ("id", "version", "trajectory_id", "state", "n_tries", "n_calls", "due_at", "ended_at", "error")
    list_filter = ("state",)
    list_select_related = ("version__grader",)
    search_fields = ("trajectory_id",)


@admin.register(ScoreSchema)
class ScoreSchemaAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "number", "author", "created_at")
    list_select_related = ("project", "author")
