"""Policies, versions and aliases over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import Caller, find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.errors import Conflict, NotFound
from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, read_fields
from apps.registry import queries
from apps.registry.api.serializers import (
    AliasBodySerializer,
    PolicySerializer,
    SplitBodySerializer,
    VersionPageSerializer,
    VersionSerializer,
)
from apps.registry.models import AliasName, Policy
from apps.registry.refresh import move_alias
from apps.registry.services import split_live, take_off_candidate


def _find_policy(request: Request, *, role: Role = Role.VIEWER) -> tuple[Policy, Caller]:
    caller = caller_of(request)
    query = read_fields(ProjectQuerySerializer, request.query_params)
    return queries.find_policy(find_project(caller, query["project"], role=role)), caller


class PolicyView(APIView):
    """The project's policy."""

    @extend_schema(parameters=[ProjectQuerySerializer], responses=PolicySerializer)
    def get(self, request: Request) -> Response:
        """Return the policy and its aliases."""
        policy, _ = _find_policy(request)
        return Response(PolicySerializer(policy).data)


class VersionsView(APIView):
    """The policy's versions."""

    @extend_schema(operation_id="versions_list", parameters=[PageQuerySerializer], responses=VersionPageSerializer)
    def get(self, request: Request) -> Response:
        """List versions, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        policy = queries.find_policy(find_project(caller_of(request), query.pop("project")))
        page = queries.list_versions(policy, **query)
        items = VersionSerializer(page.items, many=True).data
        return Response({"items": items, "next_before": page.next_before})


class VersionView(APIView):
    """One version."""

    @extend_schema(responses=VersionSerializer)
    def get(self, request: Request, version_id: str) -> Response:
        """Return lineage, checksum, verification and aliases."""
        version = queries.find_version(version_id, caller=caller_of(request))
        return Response(VersionSerializer(version).data)


class AliasView(APIView):
    """A moving name for a version. To roll back, point `live` at an earlier version."""

    @extend_schema(parameters=[ProjectQuerySerializer], request=AliasBodySerializer, responses=PolicySerializer)
    def post(self, request: Request, name: str) -> Response:
        """Load the version where it is missing and switch the alias; calls in flight end on their old version."""
        policy, caller = _find_policy(request, role=Role.TRAINER)
        alias = _read_alias(name)
        body = read_fields(AliasBodySerializer, request.data)
        version = queries.find_version(body["version"], caller=caller)
        move_alias(policy=policy, alias=alias, version=version, actor=caller.name)
        return Response(PolicySerializer(policy).data)

    @extend_schema(parameters=[ProjectQuerySerializer], responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Take the candidate off: live answers its share of the calls. `live` and `previous` cannot be taken off."""
        policy, caller = _find_policy(request, role=Role.TRAINER)
        if _read_alias(name) != AliasName.CANDIDATE:
            raise Conflict(f"{name} always stays; only the candidate can be taken off")
        take_off_candidate(policy=policy, actor=caller.name)
        return Response(status=status.HTTP_204_NO_CONTENT)


def _read_alias(name: str) -> AliasName:
    if name not in AliasName.values:
        raise NotFound(f"there is no alias {name}; there are {', '.join(AliasName.values)}")
    return AliasName(name)


class SplitView(APIView):
    """How the calls to the policy's bare name are shared out among its aliases."""

    @extend_schema(parameters=[ProjectQuerySerializer], request=SplitBodySerializer, responses=PolicySerializer)
    def put(self, request: Request) -> Response:
        """Set the shares. A session keeps the version that it falls to; `x-claw-version` tells which."""
        policy, caller = _find_policy(request, role=Role.TRAINER)
        body = read_fields(SplitBodySerializer, request.data)
        shares = {AliasName(name): share for name, share in body.items()}
        split_live(policy=policy, shares=shares, actor=caller.name)
        return Response(PolicySerializer(policy).data)
