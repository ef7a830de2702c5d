"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.registry.api import views

urlpatterns = [
    path("policy", views.PolicyView.as_view(), name="api-policy"),
    path("versions", views.VersionsView.as_view(), name="api-versions"),
    path("versions/<str:version_id>", views.VersionView.as_view(), name="api-version"),
    path("aliases/<str:name>", views.AliasView.as_view(), name="api-alias"),
    path("engines", views.EnginesView.as_view(), name="api-engines"),
]
