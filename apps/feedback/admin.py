"""Labels for staff: append-only, so nothing here is edited."""

from django.contrib import admin

from apps.core.admin import ReadOnlyAdmin
from apps.feedback.models import Label


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
