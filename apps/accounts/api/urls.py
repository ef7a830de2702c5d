"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.accounts.api import views

urlpatterns = [
    path("projects", views.ProjectsView.as_view(), name="api-projects"),
    path("teams/<str:team_id>/members", views.MembersView.as_view(), name="api-members"),
    path("teams/<str:team_id>/members/<str:user_id>", views.MemberView.as_view(), name="api-member"),
    path("agents", views.AgentsView.as_view(), name="api-agents"),
    path("agents/<str:agent_id>/keys", views.KeysView.as_view(), name="api-keys"),
    path("keys/<str:key_id>/disable", views.DisableKeyView.as_view(), name="api-disable-key"),
    path("agents/<str:agent_id>/capture", views.CaptureView.as_view(), name="api-capture"),
    path("keys/<str:name>/limits", views.KeyLimitsView.as_view(), name="api-key-limits"),
    path("projects/<str:name>/limits", views.ProjectLimitsView.as_view(), name="api-project-limits"),
    path("teams/<str:name>/limits", views.TeamLimitsView.as_view(), name="api-team-limits"),
]
