"""Addresses of end users' thumbs, below /api/v1/."""

from django.urls import path

from apps.feedback.thumbs.api import views

urlpatterns = [
    path("responses/<str:response_id>/thumb", views.ThumbView.as_view(), name="api-thumb"),
    path("thumb-tokens", views.ThumbTokensView.as_view(), name="api-thumb-tokens"),
    path("thumb-tokens/<str:token_id>/switch-off", views.SwitchTokenOffView.as_view(), name="api-switch-token-off"),
]
