"""The platform's own questions to a project's models: the live version on an engine, or a teacher at its provider.

They do not pass the gateway: what is asked here is no agent's call, so nothing of it is captured or counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Exists, OuterRef, Q

from apps.accounts.models import Project
from apps.core.errors import Conflict, NotFound, Unavailable
from apps.registry.client import ChatAnswer, EngineClient, ProviderClient
from apps.registry.models import (
    Alias,
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    EngineState,
    Teacher,
    Version,
    VersionKind,
)
from apps.registry.providers import open_credential

LIVE = "live"
MOST_HELD = 50


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """A model that can be asked, and where."""

    name: str
    engine: Engine
    model: str

    def ask(self, messages: list[dict[str, Any]], *, read_s: float, **options: Any) -> ChatAnswer:
        """Return its answer; `options` are further fields of a chat completion. Raises the client's errors."""
        body: Mapping[str, Any] = {"model": self.model, "messages": messages, **options}
        with self._connect() as client:
            return client.ask_chat(body, read_s=read_s)

    def _connect(self) -> EngineClient:
        if self.engine.project_id is None:
            return EngineClient(self.engine.base_url)
        return ProviderClient(self.engine.base_url, credential=open_credential(self.engine))


def find_speaker(project_id: str, name: str) -> Speaker:
    """Return the project's own live model for `live`, else the teacher of that name.

    Raises NotFound when there is none, Unavailable while no engine serves it, Conflict when its provider rests.
    """
    if name == LIVE:
        return find_version_speaker(find_live_version(project_id))
    teacher = Teacher.objects.select_related("engine").filter(project=project_id, name=name).first()
    if teacher is None:
        raise NotFound(f"this project has no teacher {name!r}; name one of its teachers, or {LIVE}", field="model")
    if not teacher.engine.is_enabled:
        raise Conflict(f"the provider of {name} rests: call it back first")
    return Speaker(name=name, engine=teacher.engine, model=teacher.model)


def list_held_versions(project_id: str) -> list[Version]:
    """Return the versions of the project that an engine which is up holds, the newest first."""
    up = Engine.objects.replicas().filter(is_enabled=True, state=EngineState.UP)
    loaded = Deployment.objects.filter(version=OuterRef("pk"), engine__in=up, state=DeploymentState.LOADED)
    with_base = up.filter(base_model=OuterRef("policy__base_model"), weights=None)
    held = Q(Exists(loaded)) | Q(Exists(with_base), kind=VersionKind.BASE)
    versions = Version.objects.filter(held, policy__project=project_id).select_related("policy")
    return list(versions.order_by("-number")[:MOST_HELD])


def find_version_speaker(version: Version) -> Speaker:
    """Return an engine that holds the version. Raises Unavailable when none does."""
    engine = _find_engine(version)
    if engine is None:
        raise Unavailable(f"no engine serves {version} at the moment")
    return Speaker(name=str(version), engine=engine, model=version.engine_name)


def is_held(version: Version) -> bool:
    """Whether an engine that is up holds the version."""
    return _find_engine(version) is not None


def find_live_version(project_id: str) -> Version:
    """Return the project's live version. Raises NotFound when it has no policy."""
    alias = (
        Alias.objects.select_related("version__policy").filter(policy__project=project_id, name=AliasName.LIVE).first()
    )
    if alias is None:
        raise NotFound("this project has no policy yet", field="model")
    return alias.version


def _find_engine(version: Version) -> Engine | None:
    up = Engine.objects.replicas().filter(is_enabled=True, state=EngineState.UP, base_model=version.policy.base_model)
    if version.is_base:
        return up.filter(weights=None).order_by("?").first()  # with a whole model in its place it is not there
    loaded = Deployment.objects.filter(version=version, engine=OuterRef("pk"), state=DeploymentState.LOADED)
    return up.filter(Exists(loaded)).order_by("?").first()


def check_name(project: Project, name: str) -> None:
    """Raise NotFound unless the project has such a model to ask."""
    if name != LIVE and not Teacher.objects.filter(project=project, name=name).exists():
        raise NotFound(f"this project has no teacher {name!r}; name one of its teachers, or {LIVE}", field="model")
