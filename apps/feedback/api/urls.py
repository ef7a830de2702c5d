"""Addresses of this room's REST API, below /api/v1/."""

from django.urls import include, path

from apps.feedback.api import bulk_views, export_views, schema_views, views
from apps.feedback.graders.api import urls as grader_urls
from apps.feedback.preferences.api import views as preference_views
from apps.feedback.thumbs.api import urls as thumb_urls

urlpatterns = [
    path("trajectories/<str:trajectory_id>/steps", views.StepsView.as_view(), name="api-steps"),
    path("trajectories/<str:trajectory_id>/labels", views.TrajectoryLabelsView.as_view(), name="api-trajectory-labels"),
    path("steps/<str:step_id>/labels", views.StepLabelsView.as_view(), name="api-step-labels"),
    path("responses/<str:response_id>/labels", views.ResponseLabelsView.as_view(), name="api-response-labels"),
    path("hints", views.HintsView.as_view(), name="api-hints"),
    path("labels/<str:label_id>/take-back", views.TakeBackView.as_view(), name="api-take-back-label"),
    path("score-schemas", schema_views.ScoreSchemasView.as_view(), name="api-score-schemas"),
    path("steps/<str:step_id>/corrections", preference_views.CorrectionsView.as_view(), name="api-corrections"),
    path("comparisons", preference_views.ComparisonsView.as_view(), name="api-comparisons"),
    path("rankings", preference_views.RankingsView.as_view(), name="api-rankings"),
    path("preferences", preference_views.PreferencesView.as_view(), name="api-preferences"),
    path(
        "preferences/<str:preference_id>/take-back",
        preference_views.TakeBackView.as_view(),
        name="api-take-back-preference",
    ),
    *grader_urls.urlpatterns,
    *thumb_urls.urlpatterns,
    path("exports", export_views.ExportsView.as_view(), name="api-exports"),
    path("bulk-jobs", bulk_views.BulkJobsView.as_view(), name="api-bulk-jobs"),
    path("bulk-jobs/<str:job_id>", bulk_views.BulkJobView.as_view(), name="api-bulk-job"),
    path("bulk-jobs/<str:job_id>/failures", bulk_views.BulkFailuresView.as_view(), name="api-bulk-failures"),
    path("bulk-jobs/<str:job_id>/undo", bulk_views.BulkUndoView.as_view(), name="api-bulk-undo"),
    path("", include("apps.feedback.queues.api.urls")),
]
