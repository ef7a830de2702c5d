"""The operator's view of policies, versions and engines. Versions are never edited; engines are switched on and off."""

from django.contrib import admin
from django.db import models

from apps.core.admin import ReadOnlyAdmin
from apps.registry.models import Alias, Deployment, Engine, Policy, Teacher, Version


@admin.register(Policy)
class PolicyAdmin(ReadOnlyAdmin):
    list_display = ["slug", "project", "base_model", "created_at"]


@admin.register(Version)
class VersionAdmin(ReadOnlyAdmin):
    list_display = ["id", "policy", "number", "state", "created_at", "ready_at"]
    list_filter = ["state"]


@admin.register(Alias)
class AliasAdmin(ReadOnlyAdmin):
    list_display = ["policy", "name", "version", "live_share", "switched_at"]


@admin.register(Deployment)
class DeploymentAdmin(ReadOnlyAdmin):
    list_display = ["version", "engine", "state", "changed_at"]


@admin.register(Teacher)
class TeacherAdmin(ReadOnlyAdmin):
    list_display = ["name", "project", "model", "engine"]


@admin.register(Engine)
class EngineAdmin(admin.ModelAdmin[Engine]):
    list_display = ["base_url", "kind", "project", "base_model", "state", "is_enabled", "max_in_flight", "last_seen_at"]
    readonly_fields = ["kind", "project", "base_model", "state", "last_seen_at", "last_error"]
    formfield_overrides = {models.URLField: {"assume_scheme": "http"}}
