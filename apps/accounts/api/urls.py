"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.accounts.api import views

urlpatterns = [
    path("projects", views.ProjectsView.as_view(), name="api-projects"),
    path("agents", views.AgentsView.as_view(), name="api-agents"),
    path("agents/<str:agent_id>/keys", views.KeysView.as_view(), name="api-keys"),
    path("keys/<str:key_id>/disable", views.DisableKeyView.as_view(), name="api-disable-key"),
]
