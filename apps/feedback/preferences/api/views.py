"""Preferences over REST: corrections, comparisons, rankings, the list of what stands, and the undo."""

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
from apps.core.serializers import read_fields
from apps.feedback.preferences import services
from apps.feedback.preferences.api.serializers import (
    ComparisonBodySerializer,
    CorrectionBodySerializer,
    PreferencePageSerializer,
    PreferenceSerializer,
    PreferencesQuerySerializer,
    RankingBodySerializer,
    RankingSerializer,
)
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.sides import Side, read_message
from apps.trajectories.blindness import find_hidden
from apps.trajectories.models import Trajectory
from apps.trajectories.services import find_step_of, find_trajectory


class CorrectionsView(APIView):
    """What a step should have said."""

    @extend_schema(request=CorrectionBodySerializer, responses={201: PreferenceSerializer})
    def post(self, request: Request, step_id: str) -> Response:
        """Correct a step's answer: the words become an answer to imitate, and better than what was said."""
        caller = caller_of(request)
        body = read_fields(CorrectionBodySerializer, request.data)
        step = find_step_of(caller=caller, step_id=step_id, role=Role.REVIEWER)
        row = services.add_correction(caller=caller, step=step, **body)
        return Response(PreferenceSerializer(row).data, status=status.HTTP_201_CREATED)


class ComparisonsView(APIView):
    """Comparisons of two."""

    @extend_schema(request=ComparisonBodySerializer, responses={201: PreferenceSerializer})
    def post(self, request: Request) -> Response:
        """Say which of two is better: answers to one prompt, or whole trajectories."""
        caller = caller_of(request)
        body = read_fields(ComparisonBodySerializer, request.data)
        chosen, rejected = _find_side(caller, body.pop("chosen")), _find_side(caller, body.pop("rejected"))
        row = services.add_comparison(caller=caller, chosen=chosen, rejected=rejected, **body)
        return Response(PreferenceSerializer(row).data, status=status.HTTP_201_CREATED)


def _find_side(caller: Caller, body: dict[str, Any]) -> Side:
    if body["step"] is not None:
        return Side(step=find_step_of(caller=caller, step_id=body["step"], role=Role.REVIEWER))
    if body["trajectory"] is not None:
        return Side(trajectory=_find_trajectory(caller, body["trajectory"]))
    message = body["message"]
    return Side(message=read_message({"content": message} if isinstance(message, str) else message))


def _find_trajectory(caller: Caller, trajectory_id: str) -> Trajectory:
    return find_trajectory(caller=caller, trajectory_id=trajectory_id, role=Role.REVIEWER)


class RankingsView(APIView):
    """Rankings of several."""

    @extend_schema(request=RankingBodySerializer, responses={201: RankingSerializer})
    def post(self, request: Request) -> Response:
        """Put trajectories in order: each gets a label with its place, and of each two one is better."""
        caller = caller_of(request)
        body = read_fields(RankingBodySerializer, request.data)
        places = [[_find_trajectory(caller, one) for one in place] for place in body.pop("places")]
        ranking = services.add_ranking(caller=caller, places=places, **body)
        hidden = find_hidden(caller)
        rewards = {one.pk: None if one.pk in hidden else one.reward for place in places for one in place}
        shown = {"id": ranking.id, "pairs": PreferenceSerializer(ranking.pairs, many=True).data, "rewards": rewards}
        return Response(shown, status=status.HTTP_201_CREATED)


class PreferencesView(APIView):
    """The preferences of a project."""

    @extend_schema(
        operation_id="preferences_list", parameters=[PreferencesQuerySerializer], responses=PreferencePageSerializer
    )
    def get(self, request: Request) -> Response:
        """List the preferences that stand, newest first."""
        query = read_fields(PreferencesQuerySerializer, request.query_params)
        caller = caller_of(request)
        project = find_project(caller, query.pop("project"))
        named = {name: value for name in ("kind", "trajectory") if (value := query.pop(name)) is not None}
        rows = Preference.objects.of_project(project).standing().seen_by(caller, hidden=find_hidden(caller))
        page = page_newest_first(rows.filter(**named).select_related("author", "key"), **query)
        items = PreferenceSerializer(page.items, many=True).data
        return Response({"items": items, "next_before": page.next_before})


class TakeBackView(APIView):
    """The undo of a preference."""

    @extend_schema(request=None, responses={201: PreferenceSerializer})
    def post(self, request: Request, preference_id: str) -> Response:
        """Take a correction, a comparison or a pair of a ranking back; the undo is a row too."""
        caller = caller_of(request)
        row = services.find_preference(caller=caller, preference_id=preference_id)
        undo = services.take_back_preference(caller=caller, preference=row)
        return Response(PreferenceSerializer(undo).data, status=status.HTTP_201_CREATED)
