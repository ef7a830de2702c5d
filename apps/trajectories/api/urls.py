"""Addresses of this room's REST API, below /api/v1/. Steps are read and submitted at `apps/feedback/api`'s address."""

from django.urls import include, path

from apps.trajectories.api import view_views, views

urlpatterns = [
    path("views", view_views.SavedViewsView.as_view(), name="api-views"),
    path("views/<str:view_id>", view_views.SavedViewView.as_view(), name="api-view"),
    path("views/<str:view_id>/restore", view_views.SavedViewRestoreView.as_view(), name="api-view-restore"),
    path("trajectories", views.TrajectoriesView.as_view(), name="api-trajectories"),
    path("trajectories/<str:trajectory_id>", views.TrajectoryView.as_view(), name="api-trajectory"),
    path("trajectories/<str:trajectory_id>/complete", views.CompleteView.as_view(), name="api-complete"),
    path("trajectories/<str:trajectory_id>/exclusion", views.ExclusionView.as_view(), name="api-exclusion"),
    path("", include("apps.trajectories.datasets.api.urls")),
]
