"""Projects, agents and keys over REST."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts import services
from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.api.serializers import (
    AgentBodySerializer,
    AgentListSerializer,
    AgentSerializer,
    KeyBodySerializer,
    KeyListSerializer,
    KeySerializer,
    NewKeySerializer,
    ProjectListSerializer,
    ProjectQuerySerializer,
    ProjectSerializer,
)
from apps.accounts.models import Role, Scope
from apps.core.serializers import read_fields


class ProjectsView(APIView):
    """Projects that the caller sees."""

    @extend_schema(responses=ProjectListSerializer)
    def get(self, request: Request) -> Response:
        """List projects by name; a key sees its own."""
        projects = services.list_projects(caller=caller_of(request))
        return Response({"items": ProjectSerializer(projects, many=True).data})


class AgentsView(APIView):
    """Agents of a project."""

    @extend_schema(parameters=[ProjectQuerySerializer], responses=AgentListSerializer)
    def get(self, request: Request) -> Response:
        """List agents by name."""
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller_of(request), query["project"])
        return Response({"items": AgentSerializer(project.agents.order_by("name"), many=True).data})

    @extend_schema(parameters=[ProjectQuerySerializer], request=AgentBodySerializer, responses={201: AgentSerializer})
    def post(self, request: Request) -> Response:
        """Create an agent."""
        caller = caller_of(request)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        body = read_fields(AgentBodySerializer, request.data)
        project = find_project(caller, query["project"], role=Role.OWNER)
        agent = services.create_agent(project=project, name=body["name"], actor=caller.name)
        return Response(AgentSerializer(agent).data, status=status.HTTP_201_CREATED)


class KeysView(APIView):
    """Keys of an agent."""

    @extend_schema(responses=KeyListSerializer)
    def get(self, request: Request, agent_id: str) -> Response:
        """List keys, newest first, without their secrets."""
        agent = services.find_agent_by_id(caller=caller_of(request), agent_id=agent_id)
        return Response({"items": KeySerializer(agent.keys.order_by("-id"), many=True).data})

    @extend_schema(request=KeyBodySerializer, responses={201: NewKeySerializer})
    def post(self, request: Request, agent_id: str) -> Response:
        """Create a key. Its secret is in this answer and nowhere else."""
        caller = caller_of(request)
        body = read_fields(KeyBodySerializer, request.data)
        agent = services.find_agent_by_id(caller=caller, agent_id=agent_id, role=Role.OWNER)
        key, secret = services.create_key(
            agent=agent,
            actor=caller.name,
            name=body["name"],
            scope=Scope(body["scope"]),
            created_by=caller.user,
            expires_at=body["expires_at"],
        )
        return Response({**KeySerializer(key).data, "secret": secret}, status=status.HTTP_201_CREATED)


class DisableKeyView(APIView):
    """The end of a key."""

    @extend_schema(request=None, responses=KeySerializer)
    def post(self, request: Request, key_id: str) -> Response:
        """Switch the key off for good."""
        caller = caller_of(request)
        key = services.find_key(caller=caller, key_id=key_id, role=Role.OWNER)
        services.disable_key(key=key, actor=caller.name)
        key.refresh_from_db()
        return Response(KeySerializer(key).data)
