"""Every change to policies, versions, aliases and engine rows. Speaks to no engine."""

import math
import secrets
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.accounts.models import Project, Team
from apps.accounts.services import create_project, record_event
from apps.core.contracts.tasks import REFRESH_VERSION
from apps.core.contracts.training import Probe
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.core.outward import split_url
from apps.registry.models import Alias, AliasName, Engine, EngineState, Policy, Version, VersionKind, VersionState

THE_PLATFORM = "platform"
N_SHARES = 100


@dataclass(frozen=True, kw_only=True)
class VersionFiles:
    """What a version is made of: a folder that is written already, and `contracts.checksum.hash_folder` of it."""

    path: str
    sha256: str
    kind: VersionKind = VersionKind.ADAPTER


@transaction.atomic
def ensure_policy(*, project: Project, slug: str, base_model: str, base_model_dir: str) -> Policy:
    """Return the project's policy, made when missing with its base weights as version 0, ready and live.

    Raises Conflict when the project has a policy of another base model: what was collected belongs to that one.
    """
    Project.objects.select_for_update().get(pk=project.pk)
    policy = Policy.objects.filter(project=project).first()
    if policy is None:
        return _create_policy(project=project, slug=slug, base_model=base_model, base_model_dir=base_model_dir)
    if policy.base_model != base_model:
        raise Conflict(
            f"the policy of {project.slug} stands on {policy.base_model}, not on {base_model}; make another project"
        )
    if policy.base_model_dir != base_model_dir:
        policy.base_model_dir = base_model_dir
        policy.save(update_fields=["base_model_dir"])
    return policy


@transaction.atomic
def open_project(*, team: Team, name: str, base: Policy, actor: str) -> Project:
    """Return a new project of the team whose policy begins with the same base weights as `base`.

    Raises Conflict where its address is taken, or engines do not have those weights any more.
    """
    project = create_project(team=team, name=name, actor=actor)
    ensure_policy(project=project, slug=project.slug, base_model=base.base_model, base_model_dir=base.base_model_dir)
    return project


def _refuse_taken_base(base_model: str) -> None:
    """Engines hold one whole model: a policy with whole versions has its base model's engines for itself."""
    taken = Version.objects.filter(policy__base_model=base_model, kind=VersionKind.WHOLE).select_related("policy")
    if (version := taken.first()) is not None:
        raise Conflict(
            f"the engines of {base_model} serve all the weights of {version.policy.slug}, so its base is not there any "
            "more; give this project another base model, with engines of its own"
        )


def _create_policy(*, project: Project, slug: str, base_model: str, base_model_dir: str) -> Policy:
    policy = Policy.objects.create(project=project, slug=slug, base_model=base_model, base_model_dir=base_model_dir)
    _refuse_taken_base(base_model)
    base = Version.objects.create(
        policy=policy,
        number=0,
        engine_name=base_model,
        state=VersionState.READY,
        ready_at=timezone.now(),
        lineage={"base_model": base_model},
    )
    Alias.objects.create(policy=policy, name=AliasName.LIVE, version=base)
    record_event(team=project.team, actor=THE_PLATFORM, action="policy.created", object_id=policy.id)
    notify_processes(ROUTES_CHANGED)
    return policy


def register_engine(*, base_url: str) -> Engine:
    """Return the engine at `base_url` (without /v1), made or switched on; its health is learned by `reconcile`.

    Raises InvalidInput for what is no address.
    """
    base_url = base_url.rstrip("/").removesuffix("/v1")
    if split_url(base_url, field="base_url").query:
        raise InvalidInput("an engine's address holds no ?", field="base_url")
    engine, is_new = Engine.objects.get_or_create(base_url=base_url, project=None)
    if is_new or not engine.is_enabled:
        Engine.objects.filter(pk=engine.pk).update(is_enabled=True)
        engine.is_enabled = True
        notify_processes(ROUTES_CHANGED)
    return engine


def forget_engine_health() -> None:
    """At a start nothing is known: what the rows say is of an earlier life. `reconcile` learns it anew in seconds."""
    Engine.objects.update(state=EngineState.UNKNOWN, last_error="")
    notify_processes(ROUTES_CHANGED)


@transaction.atomic
def publish_version(
    *,
    policy: Policy,
    parent: Version,
    files: VersionFiles,
    lineage: dict[str, Any],
    probe: Probe,
    goes_live: bool = True,
) -> Version:
    """Return the next version of the policy, its files written already; queues its refresh.

    An adapter's name on engines is new and never used again: engines cache prefixes under it. A whole model takes the
    base's place, and its name.
    """
    _check_probe(probe)
    Policy.objects.select_for_update().get(pk=policy.pk)
    newest = Version.objects.filter(policy=policy).order_by("-number").first()
    number = newest.number + 1 if newest else 1
    version = Version.objects.create(
        policy=policy,
        number=number,
        parent=parent,
        kind=files.kind,
        engine_name=_name_on_engines(policy, files.kind, number=number),
        adapter_path=files.path,
        sha256=files.sha256,
        lineage={"base_model": policy.base_model, **lineage},
        probe=asdict(probe),
        goes_live=goes_live,
    )
    queue_task(REFRESH_VERSION, version.id)
    publish_news(policy.project_id, kind="version", object_id=version.id)
    return version


def _name_on_engines(policy: Policy, kind: VersionKind, *, number: int) -> str:
    return policy.base_model if kind == VersionKind.WHOLE else f"{policy.slug}-v{number}-{secrets.token_hex(3)}"


def _check_probe(probe: Probe) -> None:
    n_answers = len(probe.token_ids) - 1
    if n_answers < 1 or not len(probe.likely_ids) == len(probe.logprobs) == n_answers:
        raise InvalidInput(
            "a probe needs at least two token ids, and a likely id with its log-prob for each but the last",
            field="probe",
        )
    if not all(map(math.isfinite, probe.logprobs)):
        raise InvalidInput("the trainer's log-probs for the probe are not all numbers", field="probe")


@transaction.atomic
def mark_ready(version: Version, *, verification: dict[str, Any]) -> bool:
    """Say that the version passed; it goes live if it should and no newer one is. False when it was judged before."""
    policy = Policy.objects.select_for_update().select_related("project").get(pk=version.policy_id)
    waiting = Version.objects.filter(pk=version.pk, state=VersionState.PUBLISHED)
    now = timezone.now()
    if waiting.update(state=VersionState.READY, ready_at=now, error="", verification=verification) != 1:
        return False
    version.refresh_from_db()
    if version.goes_live and _is_newest_ever_live(version):
        switch_alias(policy=policy, alias=AliasName.LIVE, version=version, actor=THE_PLATFORM)
    publish_news(policy.project_id, kind="version", object_id=version.id)
    notify_processes(ROUTES_CHANGED)
    return True


def _is_newest_ever_live(version: Version) -> bool:
    """A late check must not undo a newer version, nor a person's way back from one (that one is `previous` then)."""
    spoken = Alias.objects.filter(policy_id=version.policy_id, name__in=[AliasName.LIVE, AliasName.PREVIOUS])
    return not spoken.filter(version__number__gte=version.number).exists()


@transaction.atomic
def mark_failed(version: Version, *, error: str) -> bool:
    """Say in words why the version did not pass; no alias moves. False when it was judged before."""
    waiting = Version.objects.filter(pk=version.pk, state=VersionState.PUBLISHED)
    if waiting.update(state=VersionState.FAILED, error=error, retired_at=timezone.now()) != 1:
        return False
    publish_news(version.policy.project_id, kind="version", object_id=version.id)
    return True


def find_live_version(policy: Policy) -> Version:
    """Return what `live` names; every policy has one."""
    return Version.objects.select_related("policy").get(aliases__policy=policy, aliases__name=AliasName.LIVE)


@transaction.atomic
def give_up_files(version: Version) -> bool:
    """Let nothing load the version any more, so that its files may go. False while somebody needs them.

    Under the policy's lock, since an alias may move to this very version at this moment.
    """
    Policy.objects.select_for_update().get(pk=version.policy_id)
    idle = Version.objects.filter(pk__in=Version.objects.idle().filter(pk=version.pk), given_up_at=None)
    if idle.update(given_up_at=timezone.now()) != 1:
        return False
    publish_news(version.policy.project_id, kind="version", object_id=version.id)
    return True


def note_delay(version: Version, *, reason: str) -> None:
    """Say what a published version waits for."""
    waiting = Version.objects.filter(pk=version.pk, state=VersionState.PUBLISHED).exclude(error=reason)
    if waiting.update(error=reason):
        publish_news(version.policy.project_id, kind="version", object_id=version.id)


@transaction.atomic
def switch_alias(*, policy: Policy, alias: AliasName, version: Version, actor: str) -> Alias:
    """Point `alias` at `version`. The old `live` becomes `previous`. Gateways hear of it after commit.

    Raises InvalidInput for another policy's version and Conflict for one that did not pass its check.
    """
    Policy.objects.select_for_update().get(pk=policy.pk)
    version = Version.objects.get(pk=version.pk)
    check_pointing(policy, alias, version)
    if version.state != VersionState.READY:
        raise Conflict(
            f"version {version.number} is {version.state}: only a verified version can serve", field="version"
        )
    current = Alias.objects.select_related("version").filter(policy=policy, name=alias).first()
    if current is not None and current.version_id == version.pk:
        return current
    if alias == AliasName.LIVE and current is not None:
        _set_alias(policy, AliasName.PREVIOUS, current.version)
    moved = _set_alias(policy, alias, version)
    detail = {"alias": str(alias), "version": str(version.number)}
    record_event(team=policy.project.team, actor=actor, action="alias.switched", object_id=version.id, detail=detail)
    publish_news(policy.project_id, kind="version", object_id=version.id)
    notify_processes(ROUTES_CHANGED)
    return moved


def check_pointing(policy: Policy, alias: AliasName, version: Version) -> None:
    """Raise InvalidInput for another policy's version, Conflict for one without files or not to be beside live's."""
    if version.policy_id != policy.pk:
        raise InvalidInput("this version belongs to another policy", field="version")
    if Version.objects.filter(pk=version.pk, given_up_at__isnull=False).exists():
        raise Conflict(
            f"the files of version {version.number} are not kept any more (keep_versions of its run): it cannot serve",
            field="version",
        )
    if alias != AliasName.LIVE:
        _check_beside_live(policy, version, field="version")


def _check_beside_live(policy: Policy, version: Version, *, field: str) -> None:
    """An engine holds one whole model: whatever else is asked for, it would have to take live's weights away."""
    live = find_live_version(policy)
    if version.pk != live.pk and (version.is_whole or live.is_whole):
        whole = version if version.is_whole else live
        raise Conflict(
            f"version {whole.number} is a whole model, and an engine holds no other weights beside one: versions "
            f"{version.number} and {live.number} cannot answer at one time; point live at the one that shall",
            field=field,
        )


@transaction.atomic
def split_live(*, policy: Policy, shares: dict[AliasName, int], actor: str) -> None:
    """Share the calls to the policy's bare name out among aliases, in per cent; `{LIVE: 100}` ends a split.

    Raises InvalidInput unless the shares make 100 and live keeps some, and Conflict for an alias that names nothing, or
    a version that cannot speak beside live's.
    """
    Policy.objects.select_for_update().get(pk=policy.pk)
    if any(share < 0 for share in shares.values()) or sum(shares.values()) != N_SHARES:
        raise InvalidInput(f"the shares must make {N_SHARES}, not {sum(shares.values())}", field="live")
    if shares.get(AliasName.LIVE, 0) < 1:
        raise InvalidInput(
            "live must keep at least 1: to let another version take over, switch the alias", field="live"
        )
    named = {alias.name: alias for alias in Alias.objects.filter(policy=policy).select_related("version")}
    for name, share in shares.items():
        if not share:
            continue
        if name not in named:
            raise Conflict(f"this policy has no {name} version that could take a share", field=str(name))
        _check_beside_live(policy, named[name].version, field=str(name))
    for alias in named.values():
        if alias.name != AliasName.LIVE:
            Alias.objects.filter(pk=alias.pk).update(live_share=shares.get(AliasName(alias.name), 0))
    detail = {str(name): str(share) for name, share in shares.items()}
    record_event(team=policy.project.team, actor=actor, action="live.split", object_id=policy.id, detail=detail)
    publish_news(policy.project_id, kind="version", object_id=policy.id)
    notify_processes(ROUTES_CHANGED)


@transaction.atomic
def take_off_candidate(*, policy: Policy, actor: str) -> Alias:
    """Have no version be the candidate any more; live answers what it took of the calls. Returns what the alias was.

    Calls in flight end on its version; who asks for it by name is refused. Raises NotFound where there is none.
    """
    Policy.objects.select_for_update().get(pk=policy.pk)
    alias = Alias.objects.select_related("version").filter(policy=policy, name=AliasName.CANDIDATE).first()
    if alias is None:
        raise NotFound("no version is the candidate")
    Alias.objects.filter(pk=alias.pk).delete()
    _retire(alias.version)
    detail = {"alias": alias.name, "version": str(alias.version.number), "live_share": str(alias.live_share)}
    record_event(
        team=policy.project.team, actor=actor, action="alias.taken_off", object_id=alias.version_id, detail=detail
    )
    publish_news(policy.project_id, kind="version", object_id=alias.version_id)
    notify_processes(ROUTES_CHANGED)
    return alias


def _set_alias(policy: Policy, name: AliasName, version: Version) -> Alias:
    old = Alias.objects.select_related("version").filter(policy=policy, name=name).first()
    alias, _ = Alias.objects.update_or_create(
        policy=policy, name=name, defaults={"version": version, "switched_at": timezone.now()}
    )
    Version.objects.filter(pk=version.pk).update(retired_at=None)
    if old is not None:
        _retire(old.version)
    return alias


def _retire(version: Version) -> None:
    """Note when the last alias left the version."""
    Version.objects.filter(pk=version.pk, aliases=None).update(retired_at=timezone.now())
