"""The inbox over REST: calls outside their conversation, and their way in or out."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.serializers import read_fields, show_page
from apps.trajectories import inbox, services
from apps.trajectories.api.inbox_serializers import (
    AssignBodySerializer,
    InboxItemSerializer,
    InboxPageSerializer,
    InboxQuerySerializer,
    SideCallBodySerializer,
)
from apps.trajectories.api.rewards import sight_of
from apps.trajectories.api.serializers import StepSummarySerializer, TrajectorySerializer
from apps.trajectories.taking_out import take_out_call


class InboxView(APIView):
    """Calls that are in no trajectory, or beside a conversation."""

    @extend_schema(operation_id="inbox_list", parameters=[InboxQuerySerializer], responses=InboxPageSerializer)
    def get(self, request: Request) -> Response:
        """List calls of one kind, newest first, each with the reason."""
        query = read_fields(InboxQuerySerializer, request.query_params)
        page = inbox.list_inbox(project=find_project(caller_of(request), query.pop("project")), **query)
        return Response(show_page(InboxItemSerializer, page))


class RetryCallView(APIView):
    """Another look at a call."""

    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request, exchange_id: str) -> Response:
        """Put the call back to the recorder. It may come to the inbox again, with a new reason."""
        inbox.retry_call(caller=caller_of(request), exchange_id=exchange_id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class AssignCallView(APIView):
    """A place for a call."""

    @extend_schema(request=AssignBodySerializer, responses=TrajectorySerializer)
    def post(self, request: Request, exchange_id: str) -> Response:
        """Move the call into a trajectory of its agent."""
        caller = caller_of(request)
        body = read_fields(AssignBodySerializer, request.data)
        trajectory = inbox.assign_call(caller=caller, exchange_id=exchange_id, trajectory_id=body["trajectory"])
        return Response(TrajectorySerializer(trajectory, context=sight_of(caller)).data)


class TakeOutCallView(APIView):
    """The undo of giving a call a place."""

    @extend_schema(request=None, responses={204: None})
    def post(self, request: Request, moved_id: str) -> Response:
        """Put a call that was moved in by hand back into the inbox; refused when something relies on its steps."""
        take_out_call(caller=caller_of(request), exchange_id=moved_id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class SideCallView(APIView):
    """Whether a step belongs to the conversation."""

    @extend_schema(request=SideCallBodySerializer, responses=StepSummarySerializer)
    def post(self, request: Request, trajectory_id: str, step_id: str) -> Response:
        """Move a step out of the conversation as a side call, or into it."""
        caller = caller_of(request)
        body = read_fields(SideCallBodySerializer, request.data)
        trajectory = services.find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
        step = services.find_step(trajectory=trajectory, step_id=step_id)
        step = inbox.set_side_call(caller=caller, trajectory=trajectory, step=step, is_side=body["side"])
        return Response(StepSummarySerializer(step, context=sight_of(caller)).data)
