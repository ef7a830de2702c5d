"""Bulk jobs over REST: one change to many trajectories, its progress, what failed, one undo."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.core.paging import page_newest_first
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields
from apps.feedback.api.bulk_serializers import (
    BulkBodySerializer,
    BulkFailurePageSerializer,
    BulkFailureSerializer,
    BulkJobPageSerializer,
    BulkJobSerializer,
    FailuresQuerySerializer,
)
from apps.feedback.bulk import ACTIONS, find_action
from apps.trajectories.bulk import services

FAILURES = 200


class BulkJobsView(APIView):
    """The project's bulk jobs."""

    @extend_schema(operation_id="bulk_jobs_list", parameters=[PageQuerySerializer], responses=BulkJobPageSerializer)
    def get(self, request: Request) -> Response:
        """List bulk jobs, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        rows = services.list_jobs(find_project(caller_of(request), query.pop("project")))
        page = page_newest_first(rows, **query)
        return Response({"items": BulkJobSerializer(page.items, many=True).data, "next_before": page.next_before})

    @extend_schema(parameters=[ProjectQuerySerializer], request=BulkBodySerializer, responses={202: BulkJobSerializer})
    def post(self, request: Request) -> Response:
        """Change many trajectories in the background: those in `ids`, or all that `q` finds now."""
        caller = caller_of(request)
        project = find_project(caller, read_fields(ProjectQuerySerializer, request.query_params)["project"])
        body = read_fields(BulkBodySerializer, request.data)
        job = services.start_job(
            caller=caller,
            project=project,
            action=find_action(body["action"]),
            settings=body["settings"],
            ids=body["ids"],
            query=body["q"],
        )
        return Response(BulkJobSerializer(job).data, status=status.HTTP_202_ACCEPTED)


class BulkJobView(APIView):
    """One bulk job."""

    @extend_schema(responses=BulkJobSerializer)
    def get(self, request: Request, job_id: str) -> Response:
        """Return how far the job is."""
        return Response(BulkJobSerializer(services.find_job(caller=caller_of(request), job_id=job_id)).data)


class BulkFailuresView(APIView):
    """What a bulk job could not do."""

    @extend_schema(parameters=[FailuresQuerySerializer], responses=BulkFailurePageSerializer)
    def get(self, request: Request, job_id: str) -> Response:
        """List the trajectories that stayed as they were, each with the reason."""
        after = read_fields(FailuresQuerySerializer, request.query_params)["after"]
        job = services.find_job(caller=caller_of(request), job_id=job_id)
        found = list(services.list_failures(job).filter(pk__gt=after).order_by("pk")[: FAILURES + 1])
        items = BulkFailureSerializer(found[:FAILURES], many=True).data
        return Response({"items": items, "next_after": found[FAILURES - 1].pk if len(found) > FAILURES else None})


class BulkUndoView(APIView):
    """The undo of a whole job."""

    @extend_schema(request=None, responses={202: BulkJobSerializer})
    def post(self, request: Request, job_id: str) -> Response:
        """Take back what the job did, in the background; rows that somebody changed since stay as they are."""
        caller = caller_of(request)
        job = services.find_job(caller=caller, job_id=job_id)
        job = services.undo_job(caller=caller, job=job, action=ACTIONS[job.action])
        return Response(BulkJobSerializer(job).data, status=status.HTTP_202_ACCEPTED)
