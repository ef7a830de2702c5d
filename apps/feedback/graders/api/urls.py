"""Addresses of graders, below /api/v1/."""

from django.urls import path

from apps.feedback.graders.api import views

VERSION = "graders/<str:grader_id>/versions/<int:number>"

urlpatterns = [
    path("grader-kinds", views.GraderKindsView.as_view(), name="api-grader-kinds"),
    path("graders", views.GradersView.as_view(), name="api-graders"),
    path("graders/<str:grader_id>", views.GraderView.as_view(), name="api-grader"),
    path("graders/<str:grader_id>/switch-off", views.SwitchOffView.as_view(), name="api-switch-grader-off"),
    path("graders/<str:grader_id>/archive", views.ArchiveView.as_view(), name="api-archive-grader"),
    path("graders/<str:grader_id>/restore", views.RestoreView.as_view(), name="api-restore-grader"),
    path("graders/<str:grader_id>/take-back", views.TakeBackView.as_view(), name="api-take-back-grader"),
    path("graders/<str:grader_id>/secret", views.SecretView.as_view(), name="api-grader-secret"),
    path("graders/<str:grader_id>/versions", views.GraderVersionsView.as_view(), name="api-grader-versions"),
    path(f"{VERSION}/switch-on", views.SwitchOnView.as_view(), name="api-switch-grader-on"),
    path(f"{VERSION}/agreement", views.AgreementView.as_view(), name="api-grader-agreement"),
    path(f"{VERSION}/dry-runs", views.DryRunsView.as_view(), name="api-dry-runs"),
    path(f"{VERSION}/backfills", views.BackfillsView.as_view(), name="api-backfills"),
    path("dry-runs/<str:dry_run_id>", views.DryRunView.as_view(), name="api-dry-run"),
    path("backfills/<str:backfill_id>", views.BackfillView.as_view(), name="api-backfill"),
    path("backfills/<str:backfill_id>/cancel", views.CancelBackfillView.as_view(), name="api-cancel-backfill"),
]
