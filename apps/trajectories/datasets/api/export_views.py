"""Exports over REST: follow, cancel, fetch the file; and a trajectory's tokens as JSON, Arrow or Parquet. They are
listed and started at `apps/feedback/api`'s address, which knows all shapes."""

from collections.abc import AsyncIterator
from pathlib import Path

from asgiref.sync import sync_to_async
from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.serializers import read_fields
from apps.trajectories.api.serializers import IndexQuerySerializer
from apps.trajectories.blindness import find_hidden
from apps.trajectories.datasets import exporting
from apps.trajectories.datasets.api import export_shapes as shapes
from apps.trajectories.datasets.api.renderers import ArrowRenderer, ParquetRenderer
from apps.trajectories.datasets.models import FileFormat, Shape
from apps.trajectories.datasets.rows import read_token_page
from apps.trajectories.services import find_trajectory

_CHUNK_BYTES = 1 << 18
MEDIA_TYPES = {FileFormat.JSONL: "application/x-ndjson", FileFormat.PARQUET: "application/vnd.apache.parquet"}


class ExportView(APIView):
    """One export."""

    @extend_schema(responses=shapes.ExportSerializer)
    def get(self, request: Request, export_id: str) -> Response:
        """Return how far the export is; when it is done, with a link to its file that works for an hour."""
        export = exporting.find_export(caller=caller_of(request), export_id=export_id)
        may_fetch = (caller_of(request).role_in(export.project) or Role.VIEWER).includes(Role.TRAINER)
        return Response(shapes.ExportSerializer(export, context={"with_link": may_fetch}).data)


class CancelExportView(APIView):
    """The end of an export before its time."""

    @extend_schema(request=None, responses=shapes.ExportSerializer)
    def post(self, request: Request, export_id: str) -> Response:
        """Cancel the export."""
        caller = caller_of(request)
        export = exporting.find_export(caller=caller, export_id=export_id, role=Role.TRAINER)
        return Response(shapes.ExportSerializer(exporting.cancel_export(export=export, caller=caller)).data)


class ExportFileView(APIView):
    """An export's file. The token in its link says who may have it, so that a browser or a program can fetch it."""

    permission_classes = (AllowAny,)
    authentication_classes = ()

    @extend_schema(
        parameters=[OpenApiParameter("token", str, required=True, description="as in `download_url`")],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
        auth=[],
    )
    def get(self, request: Request, export_id: str) -> StreamingHttpResponse:
        """Fetch the file."""
        export, path = exporting.open_link(export_id, token=request.query_params.get("token", ""))
        response = StreamingHttpResponse(_read_file(path), content_type=MEDIA_TYPES[FileFormat(export.file_format)])
        response["Content-Length"] = str(path.stat().st_size)
        response["Content-Disposition"] = f'attachment; filename="{export.file_name}"'
        return response


async def _read_file(path: Path) -> AsyncIterator[bytes]:
    """Django would read a plain iterator to its end before it sends the first byte."""
    with path.open("rb") as file:
        read = sync_to_async(file.read, thread_sensitive=False)
        while chunk := await read(_CHUNK_BYTES):
            yield chunk


class TokensView(APIView):
    """A trajectory in tokens, for programs that train."""

    renderer_classes = (JSONRenderer, ArrowRenderer, ParquetRenderer)

    @extend_schema(
        parameters=[
            IndexQuerySerializer,
            OpenApiParameter("format", str, enum=["json", "arrow", "parquet"], description="as the header Accept"),
        ],
        responses=shapes.TokenPageSerializer,
    )
    def get(self, request: Request, trajectory_id: str) -> Response:
        """List steps as they are exported: prompt ids, completion ids, mask, log-probs, version, reward.

        As Arrow (`Accept: application/vnd.apache.arrow.stream`) or Parquet the rows come alone, and the header
        `X-Next-After` says what to ask the next page with.
        """
        data = {name: value for name, value in request.query_params.items() if name != "format"}
        query = read_fields(IndexQuerySerializer, data)
        caller = caller_of(request)
        trajectory = find_trajectory(caller=caller, trajectory_id=trajectory_id)
        rows, next_after = read_token_page(
            trajectory, after=query["after"], limit=query["limit"], hidden=find_hidden(caller)
        )
        headers = {"X-Next-After": str(next_after)} if next_after is not None else None
        shown = {"items": rows, "next_after": next_after, "shape": Shape.TOKENS.value}
        return Response(shown, headers=headers)
