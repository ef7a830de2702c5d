"""A project's exports over REST: listed, and started in any shape."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields, show_page
from apps.feedback.exports import SHAPES
from apps.trajectories.datasets import exporting, services
from apps.trajectories.datasets.api import export_shapes as shapes


class ExportsView(APIView):
    """A project's exports."""

    @extend_schema(operation_id="exports_list", parameters=[PageQuerySerializer], responses=shapes.ExportPageSerializer)
    def get(self, request: Request) -> Response:
        """List exports, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        page = exporting.list_exports(find_project(caller_of(request), query.pop("project")), **query)
        return Response(show_page(shapes.ExportSerializer, page, with_link=False))

    @extend_schema(
        parameters=[ProjectQuerySerializer],
        request=shapes.ExportBodySerializer,
        responses={201: shapes.StartedExportSerializer},
    )
    def post(self, request: Request) -> Response:
        """Start an export of a snapshot, a dataset or a search, in the background."""
        caller = caller_of(request)
        body = read_fields(shapes.ExportBodySerializer, request.data)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"], role=Role.TRAINER)
        snapshot_id, dataset_id = body.pop("snapshot"), body.pop("dataset")
        snapshot = services.find_snapshot(caller=caller, snapshot_id=snapshot_id) if snapshot_id else None
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id) if dataset_id else None
        export = exporting.start_export(
            project=project,
            caller=caller,
            shape=SHAPES[body.pop("shape")],
            snapshot=snapshot,
            dataset=dataset,
            file_format=body.pop("format"),
            **body,
        )
        return Response(shapes.StartedExportSerializer(export).data, status=status.HTTP_201_CREATED)
