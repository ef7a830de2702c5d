"""Addresses of this room's REST API, below /api/v1/. Steps are read and submitted at `apps/feedback/api`'s address."""

from django.urls import include, path

from apps.trajectories.api import views

urlpatterns = [
    path("trajectories", views.TrajectoriesView.as_view(), name="api-trajectories"),
    path("trajectories/<str:trajectory_id>", views.TrajectoryView.as_view(), name="api-trajectory"),
    path("trajectories/<str:trajectory_id>/complete", views.CompleteView.as_view(), name="api-complete"),
    path("trajectories/<str:trajectory_id>/exclusion", views.ExclusionView.as_view(), name="api-exclusion"),
    path("", include("apps.trajectories.datasets.api.urls")),
]
