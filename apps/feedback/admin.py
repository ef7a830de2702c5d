"""Labels, preferences and score schemas for staff: append-only, so nothing here is edited."""

from django.contrib import admin

from apps.core.admin import ReadOnlyAdmin
from apps.feedback.models import Label, ScoreSchema
from apps.feedback.preferences.models import Preference


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


@admin.register(ScoreSchema)
class ScoreSchemaAdmin(ReadOnlyAdmin):
    list_display = ("id", "project", "number", "author", "created_at")
    list_select_related = ("project", "author")
