"""Makes the engines' rows true and the engines what the rows ask for: health, adapters lost in a restart, old adapters.

Runs every few seconds, beside whoever verifies versions; each pass is complete in itself. Knows nothing of how versions
are verified, and leaves alone what is under its check.
"""

from datetime import datetime, timedelta
from urllib.parse import urlsplit

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.core.contracts.tasks import REFRESH_VERSION
from apps.core.errors import ServiceError
from apps.core.jobs import queue_task
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.registry.addresses import check_name
from apps.registry.client import EngineClient, EngineUnreachable, ProviderClient, ServedModel
from apps.registry.deployments import (
    EngineMoving,
    is_stuck,
    load_version,
    put_weights,
    record_deployment,
    unload_version,
)
from apps.registry.models import (
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    EngineState,
    Policy,
    Version,
    VersionKind,
    VersionState,
)
from apps.registry.providers import open_credential

log = structlog.get_logger(__name__)

PATIENCE_S = 30  # how long an engine may be silent, but reachable, before it counts as down
PENDING_S = 20  # after which a published version's refresh is asked for again
ASKED_S = 5.0  # for which such a message counts: while a check takes its time they must not pile up behind it
PROVIDER_EVERY_S = 60  # how often somebody else's server is asked whether it is there
KEEP_NEWEST = 3  # ready versions of a policy that stay loaded beside the aliased ones


def reconcile_engines() -> None:
    """One pass over everything."""
    enabled = Engine.objects.filter(is_enabled=True)
    has_news = [reconcile_engine(engine) for engine in enabled.replicas()]
    has_news += [reconcile_provider(engine) for engine in enabled.providers()]
    if any(has_news):
        notify_processes(ROUTES_CHANGED)
    unload_retired_versions()
    queue_pending_versions()


def reconcile_engine(engine: Engine) -> bool:
    """Learn one engine's health and put back what aliases need. Returns whether routes may have changed."""
    has_news = False
    try:
        with EngineClient(engine.base_url) as client:
            asked_at = timezone.now()
            models = client.list_models()
            has_news |= _learn_models(engine, models, asked_at=asked_at)
            has_news |= restore_weights(engine, client=client)
            has_news |= restore_aliased_versions(engine, models, client=client)
    except EngineMoving:
        log.info("engine.moving", engine=engine.id)  # it is well, and whoever changes it will say what it has
    except EngineUnreachable as error:
        return _note_silence(engine, error)
    except ServiceError as error:
        return _set_state(engine, EngineState.DOWN, error=error.message)
    Engine.objects.filter(pk=engine.pk).update(last_seen_at=timezone.now())
    return _set_state(engine, EngineState.UP) or has_news


def reconcile_provider(engine: Engine) -> bool:
    """Learn, now and then, whether a provider can be reached with our credential. Returns whether that is news."""
    if engine.checked_at is not None and engine.checked_at > timezone.now() - timedelta(seconds=PROVIDER_EVERY_S):
        return False
    return _learn_provider(engine)


def check_provider(engine: Engine) -> Engine:
    """Ask the provider now, and return its row with what was learned: `state`, and `last_error` in words."""
    if _learn_provider(engine):
        notify_processes(ROUTES_CHANGED)
    engine.refresh_from_db()
    return engine


def _learn_provider(engine: Engine) -> bool:
    now = timezone.now()
    Engine.objects.filter(pk=engine.pk).update(checked_at=now)
    try:
        credential = open_credential(engine)
        check_name(urlsplit(engine.base_url).hostname or "")
        with ProviderClient(engine.base_url, credential=credential) as client:
            client.check()
    except ServiceError as error:
        return _set_state(engine, EngineState.DOWN, error=error.message)
    Engine.objects.filter(pk=engine.pk).update(last_seen_at=now)
    return _set_state(engine, EngineState.UP)


def _learn_models(engine: Engine, models: list[ServedModel], *, asked_at: datetime) -> bool:
    """Take over the base model's name and length, and that adapters are gone which a restart has swept away.

    Those that were loaded after the engine was asked are not in its answer.
    """
    names = {model.name for model in models}
    base = next((model for model in models if not model.parent), None)
    base_model, length = (base.name, base.max_model_len) if base else ("", None)
    if length != engine.max_model_len:
        Engine.objects.filter(pk=engine.pk).update(max_model_len=length)
    has_news = base_model != engine.base_model
    if has_news:
        engine.base_model = base_model
        Engine.objects.filter(pk=engine.pk).update(base_model=base_model)
    loaded = Deployment.objects.filter(engine=engine, state=DeploymentState.LOADED, changed_at__lt=asked_at)
    for deployment in loaded.select_related("version"):
        if deployment.version.is_adapter and deployment.version.engine_name not in names:
            has_news |= record_deployment(engine, deployment.version, state=DeploymentState.UNLOADED)
    return has_news


def restore_aliased_versions(engine: Engine, models: list[ServedModel], *, client: EngineClient) -> bool:
    """Load every version that an alias names and the engine lacks. One that is refused does not stop the others."""
    has_news = False
    served = {model.name for model in models}
    loaded = Deployment.objects.filter(engine=engine, state=DeploymentState.LOADED)
    known = set(loaded.values_list("version_id", flat=True))
    for version in _aliased_versions(engine):
        if version.pk in known and version.engine_name in served:
            continue
        try:
            load_version(engine, version, client=client)
            log.info("version.restored", version=version.id, engine=engine.id)
        except EngineUnreachable:
            raise
        except ServiceError as error:
            log.error("version.not_restored", version=version.id, engine=engine.id, reason=error.message)
        has_news = True
    return has_news


def restore_weights(engine: Engine, *, client: EngineClient) -> bool:
    """Have the engine hold what live names: after a restart, in the middle of a change, or once another whole model has
    been verified in its place.
    """
    engine.refresh_from_db(fields=["weights", "moving_since"])  # the pass may have been busy with others for a while
    if (engine.moving_since is not None and not is_stuck(engine)) or not _learn_weights(engine, client=client):
        return False
    wanted = _live_whole_version(engine)
    if engine.moving_since is None and engine.weights_id == (wanted.id if wanted else None):
        return False
    policy = wanted.policy if wanted else Policy.objects.filter(base_model=engine.base_model).first()
    if policy is None:
        return False
    try:
        put_weights(engine, wanted, base_dir=policy.base_model_dir, client=client)
    except EngineUnreachable:
        raise
    except ServiceError as error:
        log.error("engine.weights_not_restored", engine=engine.id, reason=error.message)
        return True
    if wanted is not None:
        record_deployment(engine, wanted, state=DeploymentState.LOADED)
    return True


def _learn_weights(engine: Engine, *, client: EngineClient) -> bool:
    """Note that a restart has swept a whole model away. Returns whether its place is ours to fill.

    It is not while another process changes the weights, nor while a version is verified in it: whoever does that gives
    live its engine back.
    """
    if engine.weights is not None and client.read_weights_name() != engine.weights.id:
        unmoved = Engine.objects.filter(pk=engine.pk, weights=engine.weights, moving_since=engine.moving_since)
        if unmoved.update(weights=None) != 1:
            return False
        engine.weights = None
    return engine.weights is None or engine.weights.state != VersionState.PUBLISHED


def _live_whole_version(engine: Engine) -> Version | None:
    live = Version.objects.filter(policy__base_model=engine.base_model, aliases__name=AliasName.LIVE)
    return live.filter(kind=VersionKind.WHOLE, state=VersionState.READY).select_related("policy").first()


def _aliased_versions(engine: Engine) -> QuerySet[Version]:
    wanted = Version.objects.filter(policy__base_model=engine.base_model, state=VersionState.READY)
    if engine.weights_id is not None:
        return wanted.none()  # its base, on which adapters stand, is not there
    return wanted.filter(aliases__isnull=False, kind=VersionKind.ADAPTER).select_related("policy").distinct()


def _note_silence(engine: Engine, error: EngineUnreachable) -> bool:
    """A refused connection is down at once; a slow answer (a busy host) only after a while."""
    limit = timezone.now() - timedelta(seconds=PATIENCE_S)
    if error.is_timeout and engine.last_seen_at and engine.last_seen_at > limit:
        return False
    return _set_state(engine, EngineState.DOWN, error=error.message)


def _set_state(engine: Engine, state: EngineState, *, error: str = "") -> bool:
    changed = Engine.objects.filter(pk=engine.pk).exclude(state=state).update(state=state, last_error=error)
    if changed:
        log.info("engine.state", engine=engine.id, state=str(state), reason=error)
    else:  # the same state may have another reason by now
        Engine.objects.filter(pk=engine.pk).exclude(last_error=error).update(last_error=error)
    return changed == 1


def unload_retired_versions() -> None:
    """Unload adapters that no alias names any more, once calls that began on them had time to end."""
    limit = timezone.now() - timedelta(seconds=settings.CLAW.drain_s)
    loaded = Deployment.objects.filter(state=DeploymentState.LOADED, engine__state=EngineState.UP)
    idle = loaded.filter(version__aliases=None, version__kind=VersionKind.ADAPTER).exclude(
        version__state=VersionState.PUBLISHED
    )
    for deployment in idle.select_related("version", "engine"):
        version = deployment.version
        idle_since = version.retired_at or version.ready_at or version.created_at
        if version.state == VersionState.FAILED or (idle_since < limit and not _is_among_newest(version)):
            _unload_unless_aliased(deployment)


def _is_among_newest(version: Version) -> bool:
    newer = Version.objects.filter(policy_id=version.policy_id, number__gt=version.number, state=VersionState.READY)
    return newer.count() < KEEP_NEWEST


def _unload_unless_aliased(deployment: Deployment) -> None:
    """Under the policy's lock, since an alias may move to this very version at this moment."""
    version = deployment.version
    with transaction.atomic():
        Policy.objects.select_for_update().get(pk=version.policy_id)
        if version.aliases.exists():
            return
        try:
            with EngineClient(deployment.engine.base_url) as client:
                unload_version(deployment.engine, version, client=client)
        except ServiceError as error:
            log.warning("version.not_unloaded", version=version.id, reason=error.message)
            return
        notify_processes(ROUTES_CHANGED)


def queue_pending_versions() -> None:
    """Ask again for the refresh of versions that wait: their message was lost, or no engine was up."""
    limit = timezone.now() - timedelta(seconds=PENDING_S)
    pending = Version.objects.filter(state=VersionState.PUBLISHED, created_at__lt=limit)
    served = Engine.objects.filter(is_enabled=True, state=EngineState.UP).values("base_model")
    for version in pending.filter(policy__base_model__in=served):
        queue_task(REFRESH_VERSION, version.id, expires_s=ASKED_S)
