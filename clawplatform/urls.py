"""Addresses of everything that is not a model call. Model calls (`apps/gateway/paths.py`) never reach Django."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from apps.console.views.session import admin_log_in

api_page = SpectacularSwaggerSplitView.as_view(url_name="schema", template_name="api/docs.html")

urlpatterns = [
    path("", include("apps.console.urls")),
    path("api/v1/", include("apps.accounts.api.urls")),
    path("api/v1/", include("apps.registry.api.urls")),
    path("api/v1/", include("apps.trajectories.api.urls")),
    path("api/v1/", include("apps.feedback.api.urls")),
    path("api/v1/", include("apps.training.api.urls")),
    path("api/schema", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs", api_page, name="docs"),
    path("admin/login/", admin_log_in),
    path("admin/", admin.site.urls),
]

handler400 = "apps.console.views.errors.bad_request"
handler403 = "apps.console.views.errors.forbidden"
handler404 = "apps.console.views.errors.not_found"
handler500 = "apps.console.views.errors.server_error"
