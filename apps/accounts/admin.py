"""Accounts for staff. Keys are made by services only (their secret is shown once); the audit log is never edited.

Limits and capture policies are shown but set elsewhere: gateways must hear of them.
"""

from django.contrib import admin
from django.http import HttpRequest

from apps.accounts.limited import LIMIT_NAMES
from apps.accounts.models import Agent, ApiKey, AuditEvent, Membership, PassedCalls, Project, Team, User
from apps.core.admin import ReadOnlyAdmin


class MembershipInline(admin.TabularInline[Membership, Team]):
    model = Membership
    extra = 0
    autocomplete_fields = ("user",)


@admin.register(User)
class UserAdmin(admin.ModelAdmin[User]):
    list_display = ("email", "name", "is_active", "is_staff", "date_joined")
    search_fields = ("email", "name")
    fields = ("email", "name", "is_active", "is_staff", "last_login", "date_joined")
    readonly_fields = ("last_login", "date_joined")

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """People are created with a password, by services."""
        return False


@admin.register(Team)
class TeamAdmin(admin.ModelAdmin[Team]):
    list_display = ("name", "created_at")
    search_fields = ("name",)
    readonly_fields = LIMIT_NAMES
    inlines = (MembershipInline,)


@admin.register(Project)
class ProjectAdmin(admin.ModelAdmin[Project]):
    list_display = ("slug", "name", "team", "created_at")
    list_select_related = ("team",)
    search_fields = ("slug", "name")
    readonly_fields = LIMIT_NAMES

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """A project is made together with its model line, by services."""
        return False


@admin.register(Agent)
class AgentAdmin(admin.ModelAdmin[Agent]):
    list_display = ("slug", "project", "capture", "created_at")
    list_select_related = ("project",)
    search_fields = ("slug", "name")
    readonly_fields = ("capture", "patterns", "own_patterns")


@admin.register(ApiKey)
class ApiKeyAdmin(ReadOnlyAdmin):
    list_display = ("__str__", "agent", "scope", "created_at", "last_used_at", "disabled_at")
    list_select_related = ("agent",)
    exclude = ("sha256",)


@admin.register(PassedCalls)
class PassedCallsAdmin(ReadOnlyAdmin):
    list_display = ("agent", "day", "n_calls")
    list_select_related = ("agent",)


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnlyAdmin):
    list_display = ("at", "team", "actor", "action", "object_id")
    list_filter = ("action",)
    list_select_related = ("team",)
