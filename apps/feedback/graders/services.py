"""Every change to graders that people ask for: new ones, new versions, dry runs, switching on and off, back-fills."""

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from apps.accounts.access import Caller, require_enough, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.tasks import FILL_BACKFILL, RUN_DRY_RUN
from apps.core.errors import Conflict, InvalidInput, NotFound, ServiceError, first_of
from apps.core.ids import is_id
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.core.outward import check_url
from apps.feedback.graders.backfilling import drop_waiting
from apps.feedback.graders.judging import AskingSettings
from apps.feedback.graders.kinds import Kind, find_kind, find_setting_faults, read_settings
from apps.feedback.graders.models import (
    MAX_NAME,
    UNDER_WAY,
    Backfill,
    DryRun,
    Grader,
    GraderVersion,
    Grading,
    GradingState,
    WorkState,
)
from apps.feedback.graders.plugins import PluginSettings, find_plugin
from apps.feedback.graders.settings import PassOrFail
from apps.feedback.graders.webhooks import WebhookSettings
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import REWARD_FIELD, FieldKind
from apps.registry.credentials import seal_credential
from apps.registry.speaking import check_name
from apps.trajectories.models import Trajectory
from apps.trajectories.search.language import parse_query

MAX_DRY_RUN = 50
MAX_GRADERS = 100
MAX_QUERY = 1000
GRADED_FIELDS = (FieldKind.NUMBER, FieldKind.SCALE, FieldKind.BINARY)
_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME - 1}}}")


@dataclass(frozen=True, kw_only=True)
class VersionDraft:
    """What a version is told."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    field: str = REWARD_FIELD
    query: str = ""
    sample: float = 1.0


@transaction.atomic
def create_grader(
    *, caller: Caller, project: Project, name: str, kind: str, draft: VersionDraft
) -> tuple[GraderVersion, str]:
    """Return the first version of a new grader, switched off, and a webhook's secret ("" for other kinds): show it now
    or never. Raises InvalidInput that names all that is wrong, Conflict for a taken name, Forbidden for reviewers.
    """
    require_role(caller, project, Role.TRAINER)
    found = find_kind(kind)
    _require_room(project)
    if faults := find_faults(project=project, kind=found, draft=draft, name=name):
        raise first_of(faults)
    secret = _make_secret() if found.settings is WebhookSettings else ""
    grader = Grader.objects.create(project=project, name=name, kind=found.name, sealed_secret=seal_credential(secret))
    version = _add_version(grader, caller=caller, draft=draft)
    detail = {"name": name, "kind": kind}
    record_event(team=project.team, actor=caller.name, action="grader.created", object_id=grader.pk, detail=detail)
    return version, secret


@transaction.atomic
def add_version(*, caller: Caller, grader: Grader, draft: VersionDraft) -> GraderVersion:
    """Return a new version of the grader. The one that is switched on stays so until another is.

    Raises what `create_grader` raises.
    """
    require_role(caller, grader.project, Role.TRAINER)
    _lock_in_use(grader)
    if faults := find_faults(project=grader.project, kind=find_kind(grader.kind), draft=draft):
        raise first_of(faults)
    version = _add_version(grader, caller=caller, draft=draft)
    _record(grader, caller, "grader.changed", version=version)
    return version


@transaction.atomic
def hold_to_shape(*, caller: Caller, version: GraderVersion) -> GraderVersion:
    """Return a new version of a judge that differs only in that its model is held to the shape of its answer.

    Raises Conflict when this one is already, or is no judge.
    """
    if not is_loose(version):
        raise Conflict(f"{version} asks no model that could be held to the shape of its answer, or holds it already")
    settings = {**version.settings, "hold_to_shape": True}
    draft = VersionDraft(settings=settings, field=version.field, query=version.query, sample=version.sample)
    return add_version(caller=caller, grader=version.grader, draft=draft)


def is_loose(version: GraderVersion) -> bool:
    """Say whether the version asks a model that may answer in any shape."""
    kind = find_kind(version.grader.kind)
    return issubclass(kind.settings, AskingSettings) and not read_settings(kind, version.settings).hold_to_shape


def find_faults(*, project: Project, kind: Kind, draft: VersionDraft, name: str | None = None) -> list[ServiceError]:
    """Return all that is wrong with a draft, and with a new grader's name, each as the making raises it."""
    faults, checks = find_setting_faults(kind, draft.settings), list[Callable[[], object]]()
    if name is not None:
        checks.append(partial(_check_name, project, name))
    if faults:
        checks.append(partial(find_schema(project.pk).fields.find_field, draft.field))
    else:
        settings = read_settings(kind, draft.settings)
        checks.append(partial(_check_field, project, draft.field, kind=kind, settings=settings))
        checks.append(partial(_check_settings, project, settings))
    checks += [partial(_check_sample, draft), partial(_check_query, draft)]
    return faults + [fault for check in checks for fault in _catch(check)]


def _catch(check: Callable[[], object]) -> list[ServiceError]:
    try:
        check()
    except ServiceError as error:
        return [error]
    return []


def _check_name(project: Project, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidInput("a name has lower case letters, digits, - and _, 60 at most", field="name")
    if Grader.objects.filter(project=project, name=name).exists():
        raise Conflict(f"this project has a grader {name} already: give it a new version", field="name")


def _check_sample(draft: VersionDraft) -> None:
    if not 0 < draft.sample <= 1:
        raise InvalidInput("sample is the part that is graded: above 0, at most 1", field="sample")


def _check_query(draft: VersionDraft) -> None:
    if len(draft.query) > MAX_QUERY:
        raise InvalidInput(f"a query has at most {MAX_QUERY} characters", field="query")
    parse_query(draft.query)


def _add_version(grader: Grader, *, caller: Caller, draft: VersionDraft) -> GraderVersion:
    kind = find_kind(grader.kind)
    newest = GraderVersion.objects.filter(grader=grader).order_by("-number").first()
    return GraderVersion.objects.create(
        grader=grader,
        number=newest.number + 1 if newest else 1,
        settings=read_settings(kind, draft.settings).model_dump(mode="json"),
        field=draft.field,
        query=str(parse_query(draft.query)),
        sample=draft.sample,
        author=caller.user,
        key=caller.key,
    )


def _check_field(project: Project, field_name: str, *, kind: Kind, settings: Any) -> None:
    """Refuse a field whose answers the kind cannot give."""
    spec = find_schema(project.pk).fields.find_field(field_name)
    if spec.kind not in GRADED_FIELDS:
        kinds = ", ".join(GRADED_FIELDS)
        raise InvalidInput(f"{spec.name} is a {spec.kind}: graders answer fields of the kinds {kinds}", field="field")
    if isinstance(settings, PassOrFail) and spec.kind != FieldKind.BINARY:
        for name in ("passed", "failed"):
            try:
                spec.read(getattr(settings, name))
            except InvalidInput as error:
                raise InvalidInput(f"settings.{name}: {error.message}", field=f"settings.{name}") from error
    if kind.always_by_step and not ((spec.low or 0) <= -1 and (spec.high or 0) >= 1):
        raise InvalidInput(f"a {kind.words} says -1, 0 or 1, and {spec.name} does not take those", field="field")


def _check_settings(project: Project, settings: Any) -> None:
    """Look for what the settings name."""
    if isinstance(settings, AskingSettings):
        check_name(project, settings.model)
    if isinstance(settings, WebhookSettings):
        check_url(settings.url, field="settings.url")
    if isinstance(settings, PluginSettings):
        find_plugin(settings.plugin)


def renew_secret(*, caller: Caller, grader: Grader) -> str:
    """Return a new secret for a webhook: calls are signed with it from now on."""
    require_role(caller, grader.project, Role.TRAINER)
    if find_kind(grader.kind).settings is not WebhookSettings:
        raise Conflict(f"{grader.name} is no webhook: it has no secret")
    secret = _make_secret()
    Grader.objects.filter(pk=grader.pk).update(sealed_secret=seal_credential(secret))
    _record(grader, caller, "grader.secret_renewed")
    return secret


def _make_secret() -> str:
    return f"clawhook-{secrets.token_urlsafe(32)}"


@transaction.atomic
def start_dry_run(*, caller: Caller, version: GraderVersion, n_wanted: int = 20) -> DryRun:
    """Try a version on a sample in the background; no label is written."""
    require_role(caller, version.grader.project, Role.TRAINER)
    if not 1 <= n_wanted <= MAX_DRY_RUN:
        raise InvalidInput(f"try 1 to {MAX_DRY_RUN} trajectories", field="n")
    _lock_in_use(version.grader)
    dry_run = DryRun.objects.create(version=version, author=caller.user, key=caller.key, n_wanted=n_wanted)
    queue_task(RUN_DRY_RUN, dry_run.pk)
    return dry_run


@transaction.atomic
def switch_on(*, caller: Caller, version: GraderVersion) -> Grader:
    """Have the version grade what is completed from now on; an earlier one stops. Conflict before a dry run."""
    grader = version.grader
    require_role(caller, grader.project, Role.TRAINER)
    _require_dry_run(version)
    before = _lock_in_use(grader).live_id
    if before not in {None, version.pk}:
        _skip_waiting(before, why=f"v{version.number} was switched on")
    now = timezone.now()
    Grader.objects.filter(pk=grader.pk).update(live=version, switched_on_at=now, seen_until=now)
    _record(grader, caller, "grader.switched_on", version=version)
    grader.refresh_from_db()
    return grader


@transaction.atomic
def switch_off(*, caller: Caller, grader: Grader) -> Grader:
    """Have the grader grade nothing new; its labels stay. Saying it twice is fine."""
    require_role(caller, grader.project, Role.TRAINER)
    before = Grader.objects.select_for_update().get(pk=grader.pk).live_id
    if before is not None:
        Grader.objects.filter(pk=grader.pk).update(live=None, switched_on_at=None, seen_until=None)
        _skip_waiting(before, why="the grader was switched off")
        _record(grader, caller, "grader.switched_off")
    grader.refresh_from_db()
    return grader


@transaction.atomic
def archive_grader(*, caller: Caller, grader: Grader) -> Grader:
    """Switch the grader off and put it away; its labels stay, and count. Saying it twice is fine.

    Raises Conflict while it fills back.
    """
    require_role(caller, grader.project, Role.TRAINER)
    if Grader.objects.select_for_update().get(pk=grader.pk).archived_at is None:
        if Backfill.objects.filter(version__grader=grader, state__in=UNDER_WAY).exists():
            raise Conflict("a back-fill of it is under way: wait for it, or cancel it")
        switch_off(caller=caller, grader=grader)
        Grader.objects.filter(pk=grader.pk).update(archived_at=timezone.now())
        _record(grader, caller, "grader.archived")
    grader.refresh_from_db()
    return grader


@transaction.atomic
def restore_grader(*, caller: Caller, grader: Grader) -> Grader:
    """Take the grader out of the archive, switched off. Saying it twice is fine.

    Raises Conflict where there are as many as a project may have.
    """
    require_role(caller, grader.project, Role.TRAINER)
    _require_room(grader.project, besides=grader.pk)
    if Grader.objects.filter(pk=grader.pk).exclude(archived_at=None).update(archived_at=None):
        _record(grader, caller, "grader.restored")
    grader.refresh_from_db()
    return grader


def _require_room(project: Project, *, besides: str = "") -> None:
    """Hold the project; raise Conflict where one more grader would be too many."""
    Project.objects.select_for_update().get(pk=project.pk)
    if Grader.objects.filter(project=project, archived_at=None).exclude(pk=besides).count() >= MAX_GRADERS:
        raise Conflict(f"a project has at most {MAX_GRADERS} graders: archive one that is not needed any more")


def _lock_in_use(grader: Grader) -> Grader:
    """Hold the grader. Raises Conflict for one that is archived."""
    locked = Grader.objects.select_for_update().get(pk=grader.pk)
    if locked.archived_at is not None:
        raise Conflict(f"{grader.name} is archived: restore it first")
    return locked


def _skip_waiting(version_id: str | None, *, why: str) -> None:
    """What a version had still to grade by itself is left; what it said later would take the place of newer words."""
    waiting = Grading.objects.filter(version=version_id, backfill=None, state=GradingState.WAITING)
    waiting.update(state=GradingState.SKIPPED, error=why, ended_at=timezone.now())


@transaction.atomic
def start_backfill(*, caller: Caller, version: GraderVersion, query: str | None = None) -> Backfill:
    """Have the version grade what is in the pool already: what `query` finds, by default the version's own.

    Raises Conflict before a dry run, and while another back-fill of the version is under way.
    """
    project = version.grader.project
    require_role(caller, project, Role.TRAINER)
    _require_dry_run(version)
    _lock_in_use(version.grader)
    if Backfill.objects.filter(version=version, state__in=UNDER_WAY).exists():
        raise Conflict("a back-fill of this version is under way: wait for it, or cancel it")
    newest = Trajectory.objects.filter(project=project).order_by("-pk").values_list("pk", flat=True).first()
    backfill = Backfill.objects.create(
        version=version,
        author=caller.user,
        key=caller.key,
        query=version.query if query is None else str(parse_query(query)),
        upto=newest or "",
    )
    queue_task(FILL_BACKFILL, backfill.pk)
    _record(version.grader, caller, "grader.backfilled", version=version)
    return backfill


@transaction.atomic
def cancel_backfill(*, caller: Caller, backfill: Backfill) -> Backfill:
    """Stop a back-fill; what it graded stays. Conflict when it has ended."""
    require_role(caller, backfill.version.grader.project, Role.TRAINER)
    under_way = Backfill.objects.filter(pk=backfill.pk, state__in=UNDER_WAY)
    if under_way.update(state=WorkState.CANCELLED, ended_at=timezone.now()) != 1:
        raise Conflict(f"the back-fill is {backfill.state}")
    drop_waiting(backfill)
    _record(backfill.version.grader, caller, "grader.backfill_cancelled", version=backfill.version)
    backfill.refresh_from_db()
    return backfill


def _require_dry_run(version: GraderVersion) -> None:
    if not DryRun.objects.filter(version=version, state=WorkState.DONE).exists():
        raise Conflict(f"try {version} first: a dry run shows what it would say, and how far it agrees with people")


def list_graders(project: Project) -> QuerySet[Grader]:
    """Return the project's graders by name, archived ones last."""
    rows = Grader.objects.filter(project=project).select_related("live")
    return rows.order_by(F("archived_at").asc(nulls_first=True), "name")


def list_versions(grader: Grader) -> QuerySet[GraderVersion]:
    """Return the grader's versions, the newest first."""
    return GraderVersion.objects.filter(grader=grader).select_related("author", "key").order_by("-number")


def find_grader(*, caller: Caller, grader_id: str, role: Role = Role.VIEWER) -> Grader:
    """Return the grader if the caller has `role` in its project. Another team's looks like a missing one."""
    known = Grader.objects.select_related("project__team", "live")
    grader = known.filter(pk=grader_id).first() if is_id(grader_id, "grdr") else None
    has = caller.role_in(grader.project) if grader else None
    if grader is None or has is None:
        raise NotFound(f"there is no grader {grader_id!r}")
    require_enough(caller, has, role)
    return grader


def find_version(grader: Grader, number: int) -> GraderVersion:
    """Return a version of the grader. Raises NotFound."""
    version = GraderVersion.objects.filter(grader=grader, number=number).first()
    if version is None:
        raise NotFound(f"{grader.name} has no version {number}")
    version.grader = grader
    return version


def find_dry_run(*, caller: Caller, dry_run_id: str) -> DryRun:
    """Return the dry run if the caller may see its project."""
    known = DryRun.objects.select_related("version__grader__project__team")
    dry_run = known.filter(pk=dry_run_id).first() if is_id(dry_run_id, "dryr") else None
    if dry_run is None or caller.role_in(dry_run.version.grader.project) is None:
        raise NotFound(f"there is no dry run {dry_run_id!r}")
    return dry_run


def find_backfill(*, caller: Caller, backfill_id: str) -> Backfill:
    """Return the back-fill if the caller may see its project."""
    known = Backfill.objects.select_related("version__grader__project__team")
    backfill = known.filter(pk=backfill_id).first() if is_id(backfill_id, "bkfl") else None
    if backfill is None or caller.role_in(backfill.version.grader.project) is None:
        raise NotFound(f"there is no back-fill {backfill_id!r}")
    return backfill


def _record(grader: Grader, caller: Caller, action: str, *, version: GraderVersion | None = None) -> None:
    detail = {"version": str(version)} if version else None
    record_event(team=grader.project.team, actor=caller.name, action=action, object_id=grader.pk, detail=detail)
    publish_news(grader.project_id, kind="grader", object_id=grader.pk)
