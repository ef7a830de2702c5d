"""Saved views over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.core.serializers import ProjectQuerySerializer, read_fields
from apps.trajectories.api.view_serializers import (
    SavedViewBodySerializer,
    SavedViewSerializer,
    SavedViewsSerializer,
)
from apps.trajectories.search import views


class SavedViewsView(APIView):
    """The project's saved views."""

    @extend_schema(operation_id="views_list", parameters=[ProjectQuerySerializer], responses=SavedViewsSerializer)
    def get(self, request: Request) -> Response:
        """List saved views by name."""
        query = read_fields(ProjectQuerySerializer, request.query_params)
        found = views.list_views(find_project(caller_of(request), query["project"]))
        return Response({"items": SavedViewSerializer(found, many=True).data})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=SavedViewBodySerializer, responses={201: SavedViewSerializer}
    )
    def post(self, request: Request) -> Response:
        """Give a search a name."""
        caller = caller_of(request)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"])
        body = read_fields(SavedViewBodySerializer, request.data)
        view = views.save_view(caller=caller, project=project, **body)
        return Response(SavedViewSerializer(view).data, status=status.HTTP_201_CREATED)


class SavedViewView(APIView):
    """One saved view."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, view_id: str) -> Response:
        """Delete the view; `restore` brings it back. Doing it twice is fine."""
        caller = caller_of(request)
        views.delete_view(caller=caller, view=views.find_view(caller=caller, view_id=view_id))
        return Response(status=status.HTTP_204_NO_CONTENT)


class SavedViewRestoreView(APIView):
    """The undo of a deletion."""

    @extend_schema(request=None, responses=SavedViewSerializer)
    def post(self, request: Request, view_id: str) -> Response:
        """Bring a deleted view back."""
        caller = caller_of(request)
        view = views.restore_view(caller=caller, view=views.find_view(caller=caller, view_id=view_id))
        return Response(SavedViewSerializer(view).data)
