"""End users' thumbs over REST, from any page that shows a token; and the tokens themselves, for the team."""

from typing import Any

from django.http import HttpRequest
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of, read_secret
from apps.core.errors import NotFound
from apps.core.paging import page_newest_first
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields
from apps.feedback.thumbs import services
from apps.feedback.thumbs.api.serializers import (
    ThumbBodySerializer,
    ThumbSerializer,
    ThumbTokenBodySerializer,
    ThumbTokenPageSerializer,
    ThumbTokenSerializer,
)

_BEARER: Any = [{"key": []}]  # how a token is sent, as keys are
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "POST",
    "Access-Control-Allow-Headers": "authorization, content-type",
    "Access-Control-Max-Age": "86400",
}


class ThumbView(APIView):
    """One thumb, from a browser. Answers any page, without cookies, and tells nothing of what there is."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    @extend_schema(request=ThumbBodySerializer, responses={202: ThumbSerializer}, auth=_BEARER)
    def post(self, request: Request, response_id: str) -> Response:
        """Judge an answer by its id, with `Authorization: Bearer clawthumb-…`: the token may stand in the page."""
        token = services.open_token(
            read_secret(request.headers.get("Authorization", ""), ""),
            origin=request.headers.get("Origin", ""),
            address=request.META.get("REMOTE_ADDR", ""),
        )
        body = read_fields(ThumbBodySerializer, request.data)
        services.give_thumb(token=token, response_id=response_id, **body)
        return Response({"accepted": True}, status=status.HTTP_202_ACCEPTED)

    @extend_schema(exclude=True)
    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:  # noqa: ARG002 (DRF's)
        """Tell a browser that it may ask from another page's origin."""
        return Response(status=status.HTTP_204_NO_CONTENT, headers=_PREFLIGHT)

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Let pages of any origin read the answer, errors too: nothing in it is anybody's secret."""
        done = super().finalize_response(request, response, *args, **kwargs)
        done["Access-Control-Allow-Origin"] = "*"
        return done


class ThumbTokensView(APIView):
    """The tokens of a project."""

    @extend_schema(
        operation_id="thumb_tokens_list", parameters=[PageQuerySerializer], responses=ThumbTokenPageSerializer
    )
    def get(self, request: Request) -> Response:
        """List the tokens, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        page = page_newest_first(services.list_tokens(find_project(caller_of(request), query.pop("project"))), **query)
        items = ThumbTokenSerializer(page.items, many=True).data
        return Response({"items": items, "next_before": page.next_before})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=ThumbTokenBodySerializer, responses={201: ThumbTokenSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make a token that web pages may show."""
        caller = caller_of(request)
        project = find_project(caller, read_fields(ProjectQuerySerializer, request.query_params)["project"])
        body = read_fields(ThumbTokenBodySerializer, request.data)
        agent = project.agents.select_related("project__team").filter(slug=body.pop("agent")).first()
        if agent is None:
            raise NotFound("this project has no such agent", field="agent")
        token = services.create_token(caller=caller, agent=agent, **body)
        return Response(ThumbTokenSerializer(token).data, status=status.HTTP_201_CREATED)


class SwitchTokenOffView(APIView):
    """The end of a token."""

    @extend_schema(request=None, responses=ThumbTokenSerializer)
    def post(self, request: Request, token_id: str) -> Response:
        """Have the token open nothing any more; what was said by it stays."""
        caller = caller_of(request)
        token = services.find_token(caller=caller, token_id=token_id)
        return Response(ThumbTokenSerializer(services.switch_off_token(caller=caller, token=token)).data)
