"""Runs over REST. The browser's form calls the same services."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller, find_project, require_role
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.errors import InvalidInput
from apps.core.paging import MAX_LIMIT, read_page_query
from apps.training import queries, services
from apps.training.api.serializers import (
    BatchesSerializer,
    BatchSerializer,
    EventsSerializer,
    LaunchSerializer,
    MetricSerializer,
    MetricsSerializer,
    RunEventSerializer,
    RunPageSerializer,
    RunSerializer,
)
from apps.training.models import Run

PROJECT = OpenApiParameter("project", str, description="slug; a key needs none, it has its own project")
PAGE = [OpenApiParameter("before", str), OpenApiParameter("limit", OpenApiTypes.INT, description="1 to 200")]
BIGGEST = 2**31 - 1


def _find_run(request: Request, run_id: str) -> tuple[Run, Caller]:
    run, caller = queries.find_run(run_id), caller_of(request)
    require_role(caller, run.project, Role.VIEWER)
    return run, caller


def _read_number(request: Request, name: str) -> int:
    text = request.query_params.get(name) or "0"
    if not text.isascii() or not text.isdigit() or int(text) > BIGGEST:
        raise InvalidInput(f"{name} must be a whole number, 0 or more", field=name)
    return int(text)


class RunsView(APIView):
    """The project's runs."""

    @extend_schema(parameters=[PROJECT, *PAGE], responses=RunPageSerializer)
    def get(self, request: Request) -> Response:
        """List runs, newest first."""
        project = find_project(caller_of(request), request.query_params.get("project"))
        page = queries.list_runs(project, **read_page_query(request.query_params))
        return Response({"items": RunSerializer(page.items, many=True).data, "next_before": page.next_before})

    @extend_schema(parameters=[PROJECT], request=LaunchSerializer, responses={201: RunSerializer})
    def post(self, request: Request) -> Response:
        """Launch a run. With an `idempotency_key` a repeated request returns the first one's run."""
        caller = caller_of(request)
        project = find_project(caller, request.query_params.get("project"), role=Role.TRAINER)
        body = LaunchSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = services.launch_run(project=project, caller=caller, **body.validated_data)
        return Response(RunSerializer(run).data, status=status.HTTP_201_CREATED)


class RunView(APIView):
    """One run."""

    @extend_schema(responses=RunSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return its state."""
        run, _ = _find_run(request, run_id)
        return Response(RunSerializer(run).data)


class CancelView(APIView):
    """The wish to end a run."""

    @extend_schema(request=None, responses={202: RunSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Ask the run to end after a checkpoint; its versions stay."""
        run, caller = _find_run(request, run_id)
        run = services.cancel_run(run=run, caller=caller)
        return Response(RunSerializer(run).data, status=status.HTTP_202_ACCEPTED)


class ResumeView(APIView):
    """The wish to go on with a run."""

    @extend_schema(request=None, responses={202: RunSerializer})
    def post(self, request: Request, run_id: str) -> Response:
        """Queue a failed or cancelled run again; it goes on from its last checkpoint."""
        run, caller = _find_run(request, run_id)
        run = services.resume_run(run=run, caller=caller)
        return Response(RunSerializer(run).data, status=status.HTTP_202_ACCEPTED)


class MetricsView(APIView):
    """The run's curves."""

    @extend_schema(parameters=[OpenApiParameter("since_step", OpenApiTypes.INT)], responses=MetricsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the points after `since_step`."""
        run, _ = _find_run(request, run_id)
        points = queries.list_metrics(run, since_step=_read_number(request, "since_step"))
        return Response({"items": MetricSerializer(points, many=True).data})


class EventsView(APIView):
    """The run's history."""

    @extend_schema(parameters=[OpenApiParameter("after", OpenApiTypes.INT)], responses=EventsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to 200 lines after event `after`."""
        run, _ = _find_run(request, run_id)
        events = queries.list_events(run, after=_read_number(request, "after"), limit=MAX_LIMIT)
        return Response({"items": RunEventSerializer(events, many=True).data})


class BatchesView(APIView):
    """What the run was trained on."""

    @extend_schema(parameters=[OpenApiParameter("after_step", OpenApiTypes.INT)], responses=BatchesSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to 200 batches after `after_step`."""
        run, _ = _find_run(request, run_id)
        batches = queries.list_batches(run, after_step=_read_number(request, "after_step"), limit=MAX_LIMIT)
        return Response({"items": BatchSerializer(batches, many=True).data})
