"""Engines and teachers over REST: owners bring providers of their own; the platform's engines are only shown."""

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Project, Role
from apps.core.serializers import ProjectQuerySerializer, read_fields
from apps.registry import providers, queries
from apps.registry.api.serializers import (
    EngineListSerializer,
    EngineSerializer,
    ProviderBodySerializer,
    ProviderChangeSerializer,
    TeacherBodySerializer,
    TeacherListSerializer,
    TeacherSerializer,
)
from apps.registry.reconcile import check_provider


def _find_project(request: Request, *, role: Role = Role.VIEWER) -> Project:
    query = read_fields(ProjectQuerySerializer, request.query_params)
    return find_project(caller_of(request), query["project"], role=role)


class EnginesView(APIView):
    """The engines that answer this project's calls."""

    @extend_schema(parameters=[ProjectQuerySerializer], responses=EngineListSerializer)
    def get(self, request: Request) -> Response:
        """List engines with their health and the versions that they have loaded."""
        engines, loaded = queries.list_engines(_find_project(request))
        return Response({"items": EngineSerializer(engines, many=True, context={"loaded": loaded}).data})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=ProviderBodySerializer, responses={201: EngineSerializer}
    )
    def post(self, request: Request) -> Response:
        """Add a provider with OpenAI's API. Its credential is encrypted and never shown again."""
        project = _find_project(request, role=Role.OWNER)
        body = read_fields(ProviderBodySerializer, request.data)
        engine = providers.create_provider(project=project, actor=caller_of(request).name, **body)
        return Response(EngineSerializer(engine).data, status=status.HTTP_201_CREATED)


class EngineView(APIView):
    """One provider of the project."""

    @extend_schema(request=ProviderChangeSerializer, responses=EngineSerializer)
    def patch(self, request: Request, engine_id: str) -> Response:
        """Change credential, limit or switch."""
        engine = providers.find_provider(engine_id, caller=caller_of(request))
        changes = read_fields(ProviderChangeSerializer, request.data)
        changed = providers.change_provider(engine, changes=changes, actor=caller_of(request).name)
        return Response(EngineSerializer(changed).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, engine_id: str) -> Response:
        """Forget the provider and its credential; its teachers have to be gone before."""
        engine = providers.find_provider(engine_id, caller=caller_of(request))
        providers.delete_provider(engine, actor=caller_of(request).name)
        return Response(status=status.HTTP_204_NO_CONTENT)


class CheckEngineView(APIView):
    """Whether a provider answers."""

    @extend_schema(request=None, responses=EngineSerializer)
    def post(self, request: Request, engine_id: str) -> Response:
        """Ask the provider now whether it can be reached and takes the credential; `state` and `last_error` tell."""
        engine = providers.find_provider(engine_id, caller=caller_of(request))
        return Response(EngineSerializer(check_provider(engine)).data)


class TeachersView(APIView):
    """Providers' models under names of the project."""

    @extend_schema(parameters=[ProjectQuerySerializer], responses=TeacherListSerializer)
    def get(self, request: Request) -> Response:
        """List teachers by name."""
        return Response({"items": TeacherSerializer(queries.list_teachers(_find_project(request)), many=True).data})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=TeacherBodySerializer, responses={201: TeacherSerializer}
    )
    def post(self, request: Request) -> Response:
        """Let agents ask for a provider's model by a name of your own. What it says is kept as text only."""
        project = _find_project(request, role=Role.OWNER)
        body = read_fields(TeacherBodySerializer, request.data)
        engine = providers.find_provider(body.pop("engine"), caller=caller_of(request))
        teacher = providers.create_teacher(project=project, engine=engine, actor=caller_of(request).name, **body)
        return Response(TeacherSerializer(teacher).data, status=status.HTTP_201_CREATED)


class TeacherView(APIView):
    """One teacher."""

    @extend_schema(responses={204: None})
    def delete(self, request: Request, teacher_id: str) -> Response:
        """Take the name away; what was captured under it stays."""
        teacher = providers.find_teacher(teacher_id, caller=caller_of(request))
        providers.delete_teacher(teacher, actor=caller_of(request).name)
        return Response(status=status.HTTP_204_NO_CONTENT)
