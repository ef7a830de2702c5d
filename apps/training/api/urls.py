"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.training.api import views

urlpatterns = [
    path("runs", views.RunsView.as_view(), name="api-runs"),
    path("runs/estimate", views.EstimateView.as_view(), name="api-run-estimate"),
    path("runs/<str:run_id>", views.RunView.as_view(), name="api-run"),
    path("runs/<str:run_id>/cancel", views.CancelView.as_view(), name="api-run-cancel"),
    path("runs/<str:run_id>/resume", views.ResumeView.as_view(), name="api-run-resume"),
    path("runs/<str:run_id>/metrics", views.MetricsView.as_view(), name="api-run-metrics"),
    path("runs/<str:run_id>/events", views.EventsView.as_view(), name="api-run-events"),
    path("runs/<str:run_id>/batches", views.BatchesView.as_view(), name="api-run-batches"),
]
