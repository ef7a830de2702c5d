"""Imports over REST: send a file, follow, cancel, read the report."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.accounts.services import find_agent
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields, show_page
from apps.trajectories.datasets import importing, services
from apps.trajectories.datasets.api import import_shapes as shapes


class ImportsView(APIView):
    """A project's imports."""

    parser_classes = (MultiPartParser,)

    @extend_schema(operation_id="imports_list", parameters=[PageQuerySerializer], responses=shapes.ImportPageSerializer)
    def get(self, request: Request) -> Response:
        """List imports, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        page = importing.list_imports(find_project(caller_of(request), query.pop("project")), **query)
        return Response(show_page(shapes.ImportSerializer, page))

    @extend_schema(
        parameters=[ProjectQuerySerializer],
        request={"multipart/form-data": shapes.ImportBodySerializer},
        responses={201: shapes.ImportSerializer},
    )
    def post(self, request: Request) -> Response:
        """Import a file, in the background. The same content is not imported twice unless `again` says so."""
        caller = caller_of(request)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"], role=Role.TRAINER)
        body = read_fields(shapes.ImportBodySerializer, request.data)
        agent = find_agent(caller=caller, project=project, slug=body["agent"])
        dataset_id, file = body["dataset"], body["file"]
        source = importing.start_import(
            agent=agent,
            caller=caller,
            chunks=file.chunks(),
            file_name=file.name,
            n_bytes=file.size,
            settings=importing.ImportSettings(
                row_format=body["format"],
                channel=body["channel"],
                is_all_or_none=body["on_error"] == shapes.ALL,
                is_again=body["again"],
            ),
            dataset=services.find_dataset(caller=caller, dataset_id=dataset_id) if dataset_id else None,
        )
        return Response(shapes.ImportSerializer(source).data, status=status.HTTP_201_CREATED)


class ImportView(APIView):
    """One import."""

    @extend_schema(responses=shapes.ImportSerializer)
    def get(self, request: Request, import_id: str) -> Response:
        """Return how far the import is and what came of it."""
        source = importing.find_import(caller=caller_of(request), import_id=import_id)
        return Response(shapes.ImportSerializer(source).data)


class CancelImportView(APIView):
    """The end of an import before its time."""

    @extend_schema(request=None, responses=shapes.ImportSerializer)
    def post(self, request: Request, import_id: str) -> Response:
        """Cancel the import; what is imported stays."""
        caller = caller_of(request)
        source = importing.find_import(caller=caller, import_id=import_id, role=Role.TRAINER)
        return Response(shapes.ImportSerializer(importing.cancel_import(source=source, caller=caller)).data)


class ProblemsView(APIView):
    """What was not imported."""

    @extend_schema(parameters=[shapes.ProblemQuerySerializer], responses=shapes.ProblemPageSerializer)
    def get(self, request: Request, import_id: str) -> Response:
        """List the bad lines by their numbers, each with its reason."""
        query = read_fields(shapes.ProblemQuerySerializer, request.query_params)
        source = importing.find_import(caller=caller_of(request), import_id=import_id)
        page = importing.list_problems(source, **query)
        items = shapes.ProblemSerializer(page.items, many=True).data
        return Response({"items": items, "next_after": page.next_after})
