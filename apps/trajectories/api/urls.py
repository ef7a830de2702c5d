"""Addresses of this room's REST API, below /api/v1/. Steps are read and submitted at `apps/feedback/api`'s address."""

from django.urls import include, path

from apps.trajectories.api import inbox_views, view_views, views

urlpatterns = [
    path("views", view_views.SavedViewsView.as_view(), name="api-views"),
    path("views/<str:view_id>", view_views.SavedViewView.as_view(), name="api-view"),
    path("views/<str:view_id>/restore", view_views.SavedViewRestoreView.as_view(), name="api-view-restore"),
    path("inbox", inbox_views.InboxView.as_view(), name="api-inbox"),
    path("inbox/<str:exchange_id>/retry", inbox_views.RetryCallView.as_view(), name="api-retry-call"),
    path("inbox/<str:exchange_id>/assign", inbox_views.AssignCallView.as_view(), name="api-assign-call"),
    path("inbox/<str:moved_id>/take-out", inbox_views.TakeOutCallView.as_view(), name="api-take-out-call"),
    path(
        "trajectories/<str:trajectory_id>/steps/<str:step_id>/side-call",
        inbox_views.SideCallView.as_view(),
        name="api-side-call",
    ),
    path("trajectories", views.TrajectoriesView.as_view(), name="api-trajectories"),
    path("trajectories/<str:trajectory_id>", views.TrajectoryView.as_view(), name="api-trajectory"),
    path("trajectories/<str:trajectory_id>/complete", views.CompleteView.as_view(), name="api-complete"),
    path("trajectories/<str:trajectory_id>/exclusion", views.ExclusionView.as_view(), name="api-exclusion"),
    path("", include("apps.trajectories.datasets.api.urls")),
]
