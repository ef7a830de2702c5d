"""Every change to providers (engines of other people's models) and teachers (their models under a project's names).

Speaks to no engine. A provider's credential comes in here and goes out to callers of engines only.
"""

import re
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.core.outward import split_url
from apps.registry.addresses import check_host, is_address
from apps.registry.credentials import seal_credential, unseal_credential
from apps.registry.models import Engine, EngineKind, EngineState, Policy, Teacher

RESERVED_NAME = "default"  # what every project's policy is called too
SHORTEST_HINTED = 12  # of a shorter credential four letters would tell too much
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # what ends in one is read as an address, whatever its form
_CREDENTIAL = re.compile(r"[\x21-\x7e]*")


@transaction.atomic
def create_provider(
    *, project: Project, base_url: str, credential: str, actor: str, max_in_flight: int | None = None
) -> Engine:
    """Return the new engine at `base_url` (what a client of the provider would be given, mostly ending in /v1)."""
    base_url = _check_address(base_url)
    Project.objects.select_for_update().get(pk=project.pk)
    if Engine.objects.filter(project=project, base_url=base_url).exists():
        raise Conflict(f"this project has an engine at {base_url} already; change its credential", field="base_url")
    engine = Engine.objects.create(
        kind=EngineKind.OPENAI,
        project=project,
        base_url=base_url,
        max_in_flight=max_in_flight,
        **_seal(credential),
    )
    detail = {"base_url": base_url}
    record_event(team=project.team, actor=actor, action="engine.created", object_id=engine.id, detail=detail)
    notify_processes(ROUTES_CHANGED)
    return engine


@transaction.atomic
def change_provider(engine: Engine, *, changes: dict[str, Any], actor: str) -> Engine:
    """Change `credential`, `max_in_flight` or `is_enabled`; its health is then learned anew."""
    assert engine.project is not None  # noqa: S101 (a constraint of the table)
    fields: dict[str, Any] = {name: value for name, value in changes.items() if name != "credential"}
    if "credential" in changes:
        fields |= _seal(changes["credential"])
    fields |= {"state": EngineState.UNKNOWN, "last_error": "", "checked_at": None}
    if Engine.objects.filter(pk=engine.pk).update(**fields) != 1:
        raise NotFound("no such engine")
    engine.refresh_from_db()
    detail = {"changed": ", ".join(sorted(changes))}
    record_event(team=engine.project.team, actor=actor, action="engine.changed", object_id=engine.id, detail=detail)
    notify_processes(ROUTES_CHANGED)
    return engine


@transaction.atomic
def delete_provider(engine: Engine, *, actor: str) -> None:
    """Forget the engine and its credential. Raises Conflict while teachers stand on it."""
    assert engine.project is not None  # noqa: S101 (a constraint of the table)
    Project.objects.select_for_update().get(pk=engine.project.pk)
    names = list(engine.teachers.order_by("name").values_list("name", flat=True))
    if names:
        raise Conflict(f"teachers stand on this engine: delete {', '.join(names)} first")
    team = engine.project.team
    Engine.objects.filter(pk=engine.pk).delete()
    record_event(team=team, actor=actor, action="engine.deleted", object_id=engine.id)
    notify_processes(ROUTES_CHANGED)


def open_credential(engine: Engine) -> str:
    """Return what a call to this engine is authorised with, "" when nothing is.

    Raises CredentialUnreadable, and Forbidden when the operators do not allow the provider's host (any more).
    """
    if engine.kind == EngineKind.VLLM:
        return ""
    check_host(urlsplit(engine.base_url).hostname or "")
    return unseal_credential(engine.sealed_credential)


@transaction.atomic
def create_teacher(*, project: Project, engine: Engine, name: str, model: str, actor: str) -> Teacher:
    """Let the project's agents ask for the provider's `model` by `name`."""
    Project.objects.select_for_update().get(pk=project.pk)
    if engine.project_id != project.pk:
        raise NotFound("no such engine in this project")
    if not _NAME.fullmatch(name):
        raise InvalidInput("a name has letters, digits and . _ : / - and begins with a letter or digit", field="name")
    if name == RESERVED_NAME or Policy.objects.filter(project=project, slug=name).exists():
        raise Conflict(f"{name} is the name of this project's policy", field="name")
    if Teacher.objects.filter(project=project, name=name).exists():
        raise Conflict(f"this project has a teacher {name} already", field="name")
    teacher = Teacher.objects.create(project=project, engine=engine, name=name, model=model)
    detail = {"name": name, "model": model, "engine": engine.id}
    record_event(team=project.team, actor=actor, action="teacher.created", object_id=teacher.id, detail=detail)
    notify_processes(ROUTES_CHANGED)
    return teacher


@transaction.atomic
def delete_teacher(teacher: Teacher, *, actor: str) -> None:
    """Forget the name; what was captured under it stays."""
    team = teacher.project.team
    Teacher.objects.filter(pk=teacher.pk).delete()
    record_event(team=team, actor=actor, action="teacher.deleted", object_id=teacher.id, detail={"name": teacher.name})
    notify_processes(ROUTES_CHANGED)


def find_provider(engine_id: str, *, caller: Caller, role: Role = Role.OWNER) -> Engine:
    """Return a provider if the caller has `role` in its project; the platform's own engines look like missing ones."""
    rows = Engine.objects.providers().select_related("project__team")
    engine = rows.filter(pk=engine_id).first() if is_id(engine_id, "engn") else None
    if engine is None or engine.project is None or caller.role_in(engine.project) is None:
        raise NotFound("no such engine")
    require_role(caller, engine.project, role)
    return engine


def find_teacher(teacher_id: str, *, caller: Caller, role: Role = Role.OWNER) -> Teacher:
    """Return a teacher if the caller has `role` in its project; another team's looks like a missing one."""
    rows = Teacher.objects.select_related("project__team", "engine")
    teacher = rows.filter(pk=teacher_id).first() if is_id(teacher_id, "tchr") else None
    if teacher is None or caller.role_in(teacher.project) is None:
        raise NotFound("no such teacher")
    require_role(caller, teacher.project, role)
    return teacher


def _seal(credential: str) -> dict[str, str]:
    if not _CREDENTIAL.fullmatch(credential):
        raise InvalidInput("a credential has visible ASCII characters only, no blanks", field="credential")
    hint = credential[-4:] if len(credential) >= SHORTEST_HINTED else ""
    return {"sealed_credential": seal_credential(credential), "credential_last_four": hint}


def _check_address(base_url: str) -> str:
    """Return the address without a slash at its end; raises InvalidInput and Forbidden."""
    host = split_url(base_url, field="base_url").hostname or ""
    if "?" in base_url:
        raise InvalidInput("the address may hold no ?; the credential has its own field", field="base_url")
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) and not is_address(host):
        raise InvalidInput(f"{host} is neither a name nor four numbers with dots between", field="base_url")
    check_host(host)
    return base_url.rstrip("/")
