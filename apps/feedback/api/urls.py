"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import path

from apps.feedback.api import views

urlpatterns = [
    path("trajectories/<str:trajectory_id>/steps", views.StepsView.as_view(), name="api-steps"),
    path("trajectories/<str:trajectory_id>/labels", views.TrajectoryLabelsView.as_view(), name="api-trajectory-labels"),
    path("responses/<str:response_id>/labels", views.ResponseLabelsView.as_view(), name="api-response-labels"),
    path("labels/<str:label_id>/take-back", views.TakeBackView.as_view(), name="api-take-back-label"),
]
