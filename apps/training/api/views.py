"""Runs over REST. The browser's form calls the same services."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller, find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields
from apps.training import queries, services
from apps.training.api.serializers import (
    BatchesQuerySerializer,
    BatchesSerializer,
    BatchSerializer,
    EstimateBodySerializer,
    EventsQuerySerializer,
    EventsSerializer,
    LaunchBodySerializer,
    MetricSerializer,
    MetricsQuerySerializer,
    MetricsSerializer,
    OutlookSerializer,
    RunEventSerializer,
    RunPageSerializer,
    RunSerializer,
)
from apps.training.models import Run
from apps.training.recipes import read_recipe
from apps.training.room import look_ahead
from apps.trajectories.blindness import find_hidden


def _find_run(request: Request, run_id: str) -> tuple[Run, Caller]:
    caller = caller_of(request)
    return queries.find_run(run_id, caller=caller), caller


class RunsView(APIView):
    """The project's runs."""

    @extend_schema(operation_id="runs_list", parameters=[PageQuerySerializer], responses=RunPageSerializer)
    def get(self, request: Request) -> Response:
        """List runs, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        page = queries.list_runs(find_project(caller_of(request), query.pop("project")), **query)
        return Response({"items": RunSerializer(page.items, many=True).data, "next_before": page.next_before})

    @extend_schema(parameters=[ProjectQuerySerializer], request=LaunchBodySerializer, responses={201: RunSerializer})
    def post(self, request: Request) -> Response:
        """Launch a run. With an `idempotency_key` a repeated request returns the first one's run."""
        caller = caller_of(request)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"], role=Role.TRAINER)
        body = read_fields(LaunchBodySerializer, request.data)
        run = services.launch_run(project=project, caller=caller, **body)
        return Response(RunSerializer(run).data, status=status.HTTP_201_CREATED)


class EstimateView(APIView):
    """What a run would take."""

    @extend_schema(parameters=[ProjectQuerySerializer], request=EstimateBodySerializer, responses=OutlookSerializer)
    def post(self, request: Request) -> Response:
        """Return memory, disk and time by a recipe, whether it fits, and if not what to change. Launches nothing."""
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller_of(request), query["project"])
        recipe = read_recipe(read_fields(EstimateBodySerializer, request.data)["recipe"])
        return Response(OutlookSerializer(look_ahead(project, recipe)).data)


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

    @extend_schema(parameters=[MetricsQuerySerializer], responses=MetricsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return the points after `since_step`."""
        run, caller = _find_run(request, run_id)
        query = read_fields(MetricsQuerySerializer, request.query_params)
        points = queries.list_metrics(run, **query, hidden=find_hidden(caller))
        return Response({"items": MetricSerializer(points, many=True).data})


class EventsView(APIView):
    """The run's history."""

    @extend_schema(parameters=[EventsQuerySerializer], responses=EventsSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to `limit` lines after event `after`."""
        run, _ = _find_run(request, run_id)
        events = queries.list_events(run, **read_fields(EventsQuerySerializer, request.query_params))
        return Response({"items": RunEventSerializer(events, many=True).data})


class BatchesView(APIView):
    """What the run was trained on."""

    @extend_schema(parameters=[BatchesQuerySerializer], responses=BatchesSerializer)
    def get(self, request: Request, run_id: str) -> Response:
        """Return up to `limit` batches after `after_step`."""
        run, caller = _find_run(request, run_id)
        query = read_fields(BatchesQuerySerializer, request.query_params)
        batches = queries.list_batches(run, **query, hidden=find_hidden(caller))
        return Response({"items": BatchSerializer(batches, many=True).data})
