"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.feedback.api import bulk_views, views

urlpatterns = [
    path("trajectories/<str:trajectory_id>/steps", views.StepsView.as_view(), name="api-steps"),
    path("trajectories/<str:trajectory_id>/labels", views.TrajectoryLabelsView.as_view(), name="api-trajectory-labels"),
    path("responses/<str:response_id>/labels", views.ResponseLabelsView.as_view(), name="api-response-labels"),
    path("bulk-jobs", bulk_views.BulkJobsView.as_view(), name="api-bulk-jobs"),
    path("bulk-jobs/<str:job_id>", bulk_views.BulkJobView.as_view(), name="api-bulk-job"),
    path("bulk-jobs/<str:job_id>/failures", bulk_views.BulkFailuresView.as_view(), name="api-bulk-failures"),
    path("bulk-jobs/<str:job_id>/undo", bulk_views.BulkUndoView.as_view(), name="api-bulk-undo"),
    path("labels/<str:label_id>/take-back", views.TakeBackView.as_view(), name="api-take-back-label"),
]
