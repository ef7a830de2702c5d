"""Policies, versions, aliases and engines over REST."""

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller, find_project, require_role
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.errors import NotFound
from apps.core.paging import read_page_query
from apps.registry import queries
from apps.registry.api.serializers import (
    AliasBodySerializer,
    EngineListSerializer,
    EngineSerializer,
    PolicySerializer,
    VersionPageSerializer,
    VersionSerializer,
)
from apps.registry.models import AliasName, Policy
from apps.registry.refresh import move_alias

PROJECT = OpenApiParameter("project", str, description="slug; a key needs none, it has its own project")
PAGE = [OpenApiParameter("before", str), OpenApiParameter("limit", OpenApiTypes.INT, description="1 to 200")]


def _find_policy(request: Request, *, role: Role = Role.VIEWER) -> tuple[Policy, Caller]:
    caller = caller_of(request)
    project = find_project(caller, request.query_params.get("project"), role=role)
    return queries.find_policy(project), caller


class PolicyView(APIView):
    """The project's policy."""

    @extend_schema(parameters=[PROJECT], responses=PolicySerializer)
    def get(self, request: Request) -> Response:
        """Return the policy and its aliases."""
        policy, _ = _find_policy(request)
        return Response(PolicySerializer(policy).data)


class VersionsView(APIView):
    """The policy's versions."""

    @extend_schema(parameters=[PROJECT, *PAGE], responses=VersionPageSerializer)
    def get(self, request: Request) -> Response:
        """List versions, newest first."""
        policy, _ = _find_policy(request)
        page = queries.list_versions(policy, **read_page_query(request.query_params))
        items = VersionSerializer(page.items, many=True).data
        return Response({"items": items, "next_before": page.next_before})


class VersionView(APIView):
    """One version."""

    @extend_schema(responses=VersionSerializer)
    def get(self, request: Request, version_id: str) -> Response:
        """Return lineage, checksum, verification and aliases."""
        version = queries.find_version(version_id)
        require_role(caller_of(request), version.policy.project, Role.VIEWER)
        return Response(VersionSerializer(version).data)


class AliasView(APIView):
    """A moving name for a version. To roll back, point `live` at an earlier version."""

    @extend_schema(parameters=[PROJECT], request=AliasBodySerializer, responses=PolicySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Load the version where it is missing and switch the alias; calls in flight end on their old version."""
        policy, caller = _find_policy(request, role=Role.TRAINER)
        if name not in AliasName.values:
            raise NotFound(f"there is no alias {name}; there are {', '.join(AliasName.values)}")
        body = AliasBodySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        version = queries.find_version(body.validated_data["version"], policy=policy)
        move_alias(policy=policy, alias=AliasName(name), version=version, actor=caller.name)
        return Response(PolicySerializer(policy).data)


class EnginesView(APIView):
    """The engines that answer this project's calls."""

    @extend_schema(parameters=[PROJECT], responses=EngineListSerializer)
    def get(self, request: Request) -> Response:
        """List engines with their health and the versions that they have loaded."""
        policy, _ = _find_policy(request)
        engines, loaded = queries.list_engines(policy)
        return Response({"items": EngineSerializer(engines, many=True, context={"loaded": loaded}).data})
