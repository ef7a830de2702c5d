"""Addresses of datasets, snapshots, exports and imports, below /api/v1/. `apps/feedback/api` starts exports."""

from django.urls import path

from apps.trajectories.datasets.api import export_views, import_views, views

urlpatterns = [
    path("datasets", views.DatasetsView.as_view(), name="api-datasets"),
    path("datasets/<str:dataset_id>", views.DatasetView.as_view(), name="api-dataset"),
    path("datasets/<str:dataset_id>/trajectories", views.MembersView.as_view(), name="api-members"),
    path("datasets/<str:dataset_id>/trajectories/remove", views.RemovalView.as_view(), name="api-members-remove"),
    path("datasets/<str:dataset_id>/snapshots", views.SnapshotsView.as_view(), name="api-snapshots"),
    path("snapshots/<str:snapshot_id>", views.SnapshotView.as_view(), name="api-snapshot"),
    path("snapshots/<str:snapshot_id>/entries", views.EntriesView.as_view(), name="api-entries"),
    path("snapshots/<str:snapshot_id>/diff", views.DiffView.as_view(), name="api-diff"),
    path("exports/<str:export_id>", export_views.ExportView.as_view(), name="api-export"),
    path("exports/<str:export_id>/cancel", export_views.CancelExportView.as_view(), name="api-export-cancel"),
    path("exports/<str:export_id>/file", export_views.ExportFileView.as_view(), name="api-export-file"),
    path("imports", import_views.ImportsView.as_view(), name="api-imports"),
    path("imports/<str:import_id>", import_views.ImportView.as_view(), name="api-import"),
    path("imports/<str:import_id>/cancel", import_views.CancelImportView.as_view(), name="api-import-cancel"),
    path("imports/<str:import_id>/problems", import_views.ProblemsView.as_view(), name="api-import-problems"),
    path("trajectories/<str:trajectory_id>/tokens", export_views.TokensView.as_view(), name="api-tokens"),
]
