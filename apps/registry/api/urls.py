"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.registry.api import providers, views

urlpatterns = [
    path("policy", views.PolicyView.as_view(), name="api-policy"),
    path("versions", views.VersionsView.as_view(), name="api-versions"),
    path("versions/<str:version_id>", views.VersionView.as_view(), name="api-version"),
    path("aliases/<str:name>", views.AliasView.as_view(), name="api-alias"),
    path("split", views.SplitView.as_view(), name="api-split"),
    path("engines", providers.EnginesView.as_view(), name="api-engines"),
    path("engines/<str:engine_id>", providers.EngineView.as_view(), name="api-engine"),
    path("engines/<str:engine_id>/check", providers.CheckEngineView.as_view(), name="api-engine-check"),
    path("teachers", providers.TeachersView.as_view(), name="api-teachers"),
    path("teachers/<str:teacher_id>", providers.TeacherView.as_view(), name="api-teacher"),
]
