"""Labels over REST: on a trajectory, on a step, or on an answer by the id that the agent was given; and steps that
bring their rewards along."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller, find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.paging import page_newest_first
from apps.core.parsers import LargeBodyParser
from apps.core.serializers import read_fields, show_page
from apps.feedback import services
from apps.feedback.api.serializers import (
    HintPageSerializer,
    HintsQuerySerializer,
    LabelListSerializer,
    LabelSerializer,
    NewLabelSerializer,
    ResponseLabelBodySerializer,
    StepLabelBodySerializer,
    TrajectoryLabelBodySerializer,
)
from apps.feedback.api.step_bodies import (
    StepsBodySerializer,
    SubmittedStepsSerializer,
    read_step_bodies,
    show_submitted,
)
from apps.feedback.rewards import score_seen
from apps.feedback.scoring import explain, show_score, show_step_score
from apps.feedback.submitting import submit_rewarded_steps
from apps.trajectories.api.views import StepsView as ReadStepsView
from apps.trajectories.blindness import find_hidden
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import find_step, find_step_by_response, find_step_of, find_trajectory


def _add(caller: Caller, trajectory: Trajectory, step: Step | None, body: dict[str, Any]) -> Response:
    replaces = body.pop("replaces")
    span = tuple(body.pop("span") or ()) or None
    replaced = services.find_label(caller=caller, label_id=replaces) if replaces else None
    label = services.add_label(caller=caller, trajectory=trajectory, step=step, span=span, replaces=replaced, **body)
    shown = {**LabelSerializer(label).data, "reward": _show_reward(caller, trajectory)}
    return Response(shown, status=status.HTTP_201_CREATED)


def _show_reward(caller: Caller, trajectory: Trajectory) -> float | None:
    return None if trajectory.pk in find_hidden(caller) else trajectory.reward


def _list(caller: Caller, trajectory: Trajectory, step: Step | None = None) -> Response:
    score = score_seen(caller, trajectory)
    items = LabelSerializer(services.list_labels(caller=caller, trajectory=trajectory, step=step), many=True).data
    shown = {"items": items, "reward": score.reward, "step_rewards": score.step_rewards}
    of_target = show_step_score(score, step.pk) if step is not None else show_score(score)
    return Response({**shown, "explanation": explain(score), "score": of_target})


class StepsView(ReadStepsView):
    """The steps of a trajectory, whole. They are submitted here since they may bring rewards."""

    parser_classes = (LargeBodyParser,)

    @extend_schema(request=StepsBodySerializer, responses={201: SubmittedStepsSerializer})
    def post(self, request: Request, trajectory_id: str) -> Response:
        """Add steps that an agent made by itself: token ids, log-probs, rewards. All are stored, or none.

        A step with a `client_step_id` that the trajectory has already is not added again.
        """
        caller = caller_of(request)
        bodies = read_step_bodies(request.data)
        trajectory = find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
        submitted = submit_rewarded_steps(
            caller=caller,
            trajectory=trajectory,
            drafts=[body.draft for body in bodies],
            rewards=[body.reward for body in bodies],
        )
        shown = show_submitted(submitted, reward=_show_reward(caller, trajectory))
        return Response(shown, status=status.HTTP_201_CREATED)


class TrajectoryLabelsView(APIView):
    """Labels of a trajectory and its steps."""

    @extend_schema(responses=LabelListSerializer)
    def get(self, request: Request, trajectory_id: str) -> Response:
        """List labels, oldest first, superseded ones too, with the reward that the current ones add up to."""
        caller = caller_of(request)
        return _list(caller, find_trajectory(caller=caller, trajectory_id=trajectory_id))

    @extend_schema(request=TrajectoryLabelBodySerializer, responses={201: NewLabelSerializer})
    def post(self, request: Request, trajectory_id: str) -> Response:
        """Add a label to the trajectory, or to the step that the body names."""
        caller = caller_of(request)
        body = read_fields(TrajectoryLabelBodySerializer, request.data)
        trajectory = find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)
        step_id = body.pop("step")
        step = find_step(trajectory=trajectory, step_id=step_id) if step_id else None
        return _add(caller, trajectory, step, body)


class StepLabelsView(APIView):
    """Labels of one step."""

    @extend_schema(responses=LabelListSerializer)
    def get(self, request: Request, step_id: str) -> Response:
        """List the labels of this step, oldest first."""
        caller = caller_of(request)
        step = find_step_of(caller=caller, step_id=step_id)
        return _list(caller, step.trajectory, step)

    @extend_schema(request=StepLabelBodySerializer, responses={201: NewLabelSerializer})
    def post(self, request: Request, step_id: str) -> Response:
        """Add a label to the step, or to a span of its words."""
        caller = caller_of(request)
        body = read_fields(StepLabelBodySerializer, request.data)
        step = find_step_of(caller=caller, step_id=step_id, role=Role.REVIEWER)
        return _add(caller, step.trajectory, step, body)


class ResponseLabelsView(APIView):
    """Labels of one answer, by its `chatcmpl-…` id. Works from the moment that the agent has the answer."""

    @extend_schema(responses=LabelListSerializer)
    def get(self, request: Request, response_id: str) -> Response:
        """List the labels of this answer's step."""
        caller = caller_of(request)
        step = find_step_by_response(caller=caller, response_id=response_id)
        return _list(caller, step.trajectory, step)

    @extend_schema(request=ResponseLabelBodySerializer, responses={201: NewLabelSerializer})
    def post(self, request: Request, response_id: str) -> Response:
        """Add a label to the step of this answer."""
        caller = caller_of(request)
        body = read_fields(ResponseLabelBodySerializer, request.data)
        choice = body.pop("choice")
        step = find_step_by_response(caller=caller, response_id=response_id, choice=choice, role=Role.REVIEWER)
        return _add(caller, step.trajectory, step, body)


class HintsView(APIView):
    """Words to the model of a project's steps: what it should have known. What distillation (`hindsight`) reads."""

    @extend_schema(operation_id="hints_list", parameters=[HintsQuerySerializer], responses=HintPageSerializer)
    def get(self, request: Request) -> Response:
        """List the hints that stand, newest first."""
        query = read_fields(HintsQuerySerializer, request.query_params)
        caller = caller_of(request)
        hints = services.list_hints(caller=caller, project=find_project(caller, query.pop("project")))
        trajectory_id = query.pop("trajectory")
        if trajectory_id is not None:
            hints = hints.filter(trajectory=trajectory_id)
        return Response(show_page(LabelSerializer, page_newest_first(hints, **query)))


class TakeBackView(APIView):
    """The undo of a label."""

    @extend_schema(request=None, responses={201: NewLabelSerializer})
    def post(self, request: Request, label_id: str) -> Response:
        """Take a label back; the undo is a label too, without a value."""
        caller = caller_of(request)
        label = services.find_label(caller=caller, label_id=label_id)
        undo = services.take_back_label(caller=caller, label=label)
        reward = _show_reward(caller, undo.trajectory)
        return Response({**LabelSerializer(undo).data, "reward": reward}, status=status.HTTP_201_CREATED)
