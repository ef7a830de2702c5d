"""Trajectories over REST: open, list, read, complete, keep out of training."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.accounts.services import find_agent
from apps.core.serializers import ProjectQuerySerializer, read_fields, show_page
from apps.trajectories import services
from apps.trajectories.api.rewards import sight_of
from apps.trajectories.api.serializers import (
    ExclusionBodySerializer,
    ListQuerySerializer,
    OpenBodySerializer,
    StepPageSerializer,
    StepsQuerySerializer,
    StepSummarySerializer,
    TrajectoryDetailSerializer,
    TrajectoryPageSerializer,
    TrajectorySerializer,
    show_step,
)
from apps.trajectories.search.services import search
from apps.trajectories.trie import iterate_steps

SUMMARY_LIMIT = 200


class TrajectoriesView(APIView):
    """The pool's trajectories."""

    @extend_schema(
        operation_id="trajectories_list", parameters=[ListQuerySerializer], responses=TrajectoryPageSerializer
    )
    def get(self, request: Request) -> Response:
        """List trajectories, newest first."""
        query = read_fields(ListQuerySerializer, request.query_params)
        caller = caller_of(request)
        project = find_project(caller, query.pop("project"))
        sight = sight_of(caller)
        page = search(project=project, hidden=sight["hidden"], **query)
        return Response({**show_page(TrajectorySerializer, page, **sight), "warning": page.warning})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=OpenBodySerializer, responses={201: TrajectorySerializer}
    )
    def post(self, request: Request) -> Response:
        """Open a trajectory. Calls to its `base_url` land in it, whatever else they say about their session."""
        caller = caller_of(request)
        body = read_fields(OpenBodySerializer, request.data)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"], role=Role.REVIEWER)
        agent = find_agent(caller=caller, project=project, slug=body.pop("agent", None))
        trajectory = services.open_trajectory(agent=agent, key=caller.key, **body)
        shown = TrajectorySerializer(trajectory, context=sight_of(caller)).data
        return Response(shown, status=status.HTTP_201_CREATED)


class TrajectoryView(APIView):
    """One trajectory."""

    @extend_schema(responses=TrajectoryDetailSerializer)
    def get(self, request: Request, trajectory_id: str) -> Response:
        """Return the trajectory and its first 200 steps in short."""
        caller = caller_of(request)
        trajectory, sight = services.find_trajectory(caller=caller, trajectory_id=trajectory_id), sight_of(caller)
        steps = list(trajectory.steps.in_short().order_by("index")[: SUMMARY_LIMIT + 1])
        shown = StepSummarySerializer(steps[:SUMMARY_LIMIT], many=True, context=sight).data
        next_after = steps[SUMMARY_LIMIT - 1].index if len(steps) > SUMMARY_LIMIT else None
        of_all = TrajectorySerializer(trajectory, context=sight).data
        return Response({**of_all, "steps": shown, "next_after": next_after})


class StepsView(APIView):
    """The steps of a trajectory, whole."""

    @extend_schema(parameters=[StepsQuerySerializer], responses=StepPageSerializer)
    def get(self, request: Request, trajectory_id: str) -> Response:
        """List steps in order with their messages; `?tokens=1` adds the engine's token ids and log-probs."""
        query = read_fields(StepsQuerySerializer, request.query_params)
        caller = caller_of(request)
        trajectory, sight = services.find_trajectory(caller=caller, trajectory_id=trajectory_id), sight_of(caller)
        first, limit = query["after"] + 1, query["limit"]
        views = list(iterate_steps(trajectory, first=first, limit=limit + 1))
        items = [show_step(view, with_tokens=query["tokens"], context=sight) for view in views[:limit]]
        return Response({"items": items, "next_after": views[limit - 1].row.index if len(views) > limit else None})


class CompleteView(APIView):
    """The end of a trajectory."""

    @extend_schema(request=None, responses=TrajectorySerializer)
    def post(self, request: Request, trajectory_id: str) -> Response:
        """Complete the trajectory. Doing it twice is fine; calls that ended before are still taken in."""
        caller = caller_of(request)
        trajectory = services.find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
        completed = services.complete_trajectory(trajectory=trajectory)
        return Response(TrajectorySerializer(completed, context=sight_of(caller)).data)


class ExclusionView(APIView):
    """Whether a trajectory may be trained on."""

    @extend_schema(request=ExclusionBodySerializer, responses=TrajectorySerializer)
    def post(self, request: Request, trajectory_id: str) -> Response:
        """Keep the trajectory out of training, or let it in again."""
        caller = caller_of(request)
        body = read_fields(ExclusionBodySerializer, request.data)
        trajectory = services.find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
        services.set_exclusion(trajectory=trajectory, is_excluded=body["excluded"], actor=caller.name)
        return Response(TrajectorySerializer(trajectory, context=sight_of(caller)).data)
