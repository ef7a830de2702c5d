"""Addresses of datasets, snapshots, exports and imports, below /api/v1/."""

from django.urls import path

from apps.trajectories.datasets.api import views

urlpatterns = [
    path("datasets", views.DatasetsView.as_view(), name="api-datasets"),
    path("datasets/<str:dataset_id>", views.DatasetView.as_view(), name="api-dataset"),
    path("datasets/<str:dataset_id>/trajectories", views.MembersView.as_view(), name="api-members"),
    path("datasets/<str:dataset_id>/trajectories/remove", views.RemovalView.as_view(), name="api-members-remove"),
    path("datasets/<str:dataset_id>/snapshots", views.SnapshotsView.as_view(), name="api-snapshots"),
    path("snapshots/<str:snapshot_id>", views.SnapshotView.as_view(), name="api-snapshot"),
    path("snapshots/<str:snapshot_id>/entries", views.EntriesView.as_view(), name="api-entries"),
    path("snapshots/<str:snapshot_id>/diff", views.DiffView.as_view(), name="api-diff"),
]
