"""People, projects, agents, keys and their policies over REST."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts import services
from apps.accounts.access import Caller, find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.api.serializers import (
    AgentBodySerializer,
    AgentListSerializer,
    AgentSerializer,
    CaptureBodySerializer,
    CaptureSerializer,
    KeyBodySerializer,
    KeyListSerializer,
    KeySerializer,
    LimitsSerializer,
    MemberBodySerializer,
    MemberListSerializer,
    MemberSerializer,
    NewKeySerializer,
    NewMemberSerializer,
    ProjectListSerializer,
    ProjectSerializer,
    RoleBodySerializer,
)
from apps.accounts.models import ApiKey, CaptureMode, Project, Role, Scope, Team
from apps.core.errors import InvalidInput
from apps.core.serializers import ProjectQuerySerializer, read_fields


class ProjectsView(APIView):
    """Projects that the caller sees."""

    @extend_schema(responses=ProjectListSerializer)
    def get(self, request: Request) -> Response:
        """List projects by name; a key sees its own."""
        projects = services.list_projects(caller=caller_of(request))
        return Response({"items": ProjectSerializer(projects, many=True).data})


class MembersView(APIView):
    """Who is in a team."""

    @extend_schema(operation_id="teams_members_list", responses=MemberListSerializer)
    def get(self, request: Request, team_id: str) -> Response:
        """List the team's members by e-mail."""
        team = services.find_team(caller=caller_of(request), team_id=team_id)
        return Response({"items": MemberSerializer(services.list_members(team), many=True).data})

    @extend_schema(request=MemberBodySerializer, responses={201: NewMemberSerializer})
    def post(self, request: Request, team_id: str) -> Response:
        """Add a person. Who has no account gets one; its first password is in this answer and nowhere else."""
        caller = caller_of(request)
        body = read_fields(MemberBodySerializer, request.data)
        team = services.find_team(caller=caller, team_id=team_id, role=Role.OWNER)
        role = Role(body.pop("role"))
        member, first_password = services.invite_person(team=team, role=role, actor=caller.name, **body)
        shown = {**MemberSerializer(member).data, "first_password": first_password}
        return Response(shown, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class MemberView(APIView):
    """One person in a team."""

    @extend_schema(responses=MemberSerializer)
    def get(self, request: Request, team_id: str, user_id: str) -> Response:
        """Return the member."""
        team = services.find_team(caller=caller_of(request), team_id=team_id)
        return Response(MemberSerializer(services.find_member(team=team, user_id=user_id)).data)

    @extend_schema(request=RoleBodySerializer, responses=MemberSerializer)
    def patch(self, request: Request, team_id: str, user_id: str) -> Response:
        """Give the member another role; a team keeps an owner."""
        caller = caller_of(request)
        body = read_fields(RoleBodySerializer, request.data)
        team = services.find_team(caller=caller, team_id=team_id, role=Role.OWNER)
        member = services.find_member(team=team, user_id=user_id)
        services.change_role(member, role=Role(body["role"]), actor=caller.name)
        member.refresh_from_db(fields=["role"])
        return Response(MemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, team_id: str, user_id: str) -> Response:
        """Take the person out of the team; what they said and made stays. A team keeps an owner."""
        caller = caller_of(request)
        team = services.find_team(caller=caller, team_id=team_id, role=Role.OWNER)
        services.remove_member(services.find_member(team=team, user_id=user_id), actor=caller.name)
        return Response(status=status.HTTP_204_NO_CONTENT)


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
            is_one_session=body["is_one_session"],
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


class _LimitsView(APIView):
    """Limits of one thing, which the address names."""

    def find(self, caller: Caller, name: str, *, role: Role) -> Team | Project | ApiKey:
        """Return the thing if the caller has `role` there."""
        raise NotImplementedError

    @extend_schema(responses=LimitsSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return its limits."""
        return Response(self.find(caller_of(request), name, role=Role.VIEWER).limits())

    @extend_schema(request=LimitsSerializer, responses=LimitsSerializer)
    def patch(self, request: Request, name: str) -> Response:
        """Set the limits that the body names, null for none."""
        caller = caller_of(request)
        limits = read_fields(LimitsSerializer, request.data)
        if not limits:
            raise InvalidInput("name a limit that is to change")
        target = self.find(caller, name, role=Role.OWNER)
        services.set_limits(target, limits=limits, actor=caller.name)
        return Response(target.limits())


class TeamLimitsView(_LimitsView):
    """Limits of all calls of a team's projects together."""

    def find(self, caller: Caller, name: str, *, role: Role) -> Team:
        return services.find_team(caller=caller, team_id=name, role=role)


class ProjectLimitsView(_LimitsView):
    """Limits of all calls of a project together."""

    def find(self, caller: Caller, name: str, *, role: Role) -> Project:
        return find_project(caller, name, role=role)


class KeyLimitsView(_LimitsView):
    """Limits of the calls with one key."""

    def find(self, caller: Caller, name: str, *, role: Role) -> ApiKey:
        return services.find_key(caller=caller, key_id=name, role=role)


class CaptureView(APIView):
    """What the pool keeps of an agent's calls."""

    @extend_schema(responses=CaptureSerializer)
    def get(self, request: Request, agent_id: str) -> Response:
        """Return the agent's capture policy."""
        agent = services.find_agent_by_id(caller=caller_of(request), agent_id=agent_id)
        return Response(CaptureSerializer(agent).data)

    @extend_schema(request=CaptureBodySerializer, responses=CaptureSerializer)
    def patch(self, request: Request, agent_id: str) -> Response:
        """Set the policy for the calls from now on. Patterns that are not named stay as they are."""
        caller = caller_of(request)
        body: dict[str, Any] = read_fields(CaptureBodySerializer, request.data)
        agent = services.find_agent_by_id(caller=caller, agent_id=agent_id, role=Role.OWNER)
        mode = CaptureMode(body.pop("mode"))
        services.set_capture(agent=agent, actor=caller.name, mode=mode, **body)
        return Response(CaptureSerializer(agent).data)
