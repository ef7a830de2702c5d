"""Which version is on which engine: loads, unloads, and keeps the rows true. Judges no version, moves no alias.

An engine holds many adapters beside each other but one whole model, in its base's place. To change that one, gateways
are told first and hold their calls; those in flight end on the weights with which they began; then it is paused.
"""

import time

import structlog
from django.utils import timezone

from apps.core.errors import ServiceError
from apps.core.notices import ROUTES_CHANGED, notify_processes
from apps.registry.client import EngineClient, EngineRefused, EngineUnreachable
from apps.registry.models import Deployment, DeploymentState, Engine, Version

log = structlog.get_logger(__name__)

HEAR_S = 0.3  # in which gateways hear of a change, and hold the calls that would still go to the old weights
STUCK_S = 600.0  # longer than any change of weights takes
BASE_WEIGHTS = "base"  # what an engine's weights are called when they are its base's


class EngineMoving(EngineUnreachable):
    """Another process is changing the engine's weights: it will answer soon."""

    code = "engine_moving"


def load_version(engine: Engine, version: Version, *, client: EngineClient) -> None:
    """Put the version on the engine under its name, unless it is there. Raises the client's errors, recorded."""
    if not version.is_adapter:
        put_weights(
            engine, version if version.is_whole else None, base_dir=version.policy.base_model_dir, client=client
        )
        if version.is_whole:
            record_deployment(engine, version, state=DeploymentState.LOADED)
        return
    put_weights(engine, None, base_dir=version.policy.base_model_dir, client=client)
    if version.engine_name not in {model.name for model in client.list_models()}:
        try:
            client.load_adapter(version.engine_name, version.adapter_path)
        except EngineRefused as error:
            record_deployment(engine, version, state=DeploymentState.FAILED, error=error.message)
            raise
    record_deployment(engine, version, state=DeploymentState.LOADED)


def unload_version(engine: Engine, version: Version, *, client: EngineClient) -> None:
    """Take an adapter off the engine. Its row changes only when the engine has agreed."""
    client.unload_adapter(version.engine_name)
    record_deployment(engine, version, state=DeploymentState.UNLOADED)


def put_weights(engine: Engine, whole: Version | None, *, base_dir: str, client: EngineClient) -> None:
    """Have the engine hold this whole model, None for its base in `base_dir`. Adapters of what was there are dropped.

    Raises the client's errors: then the engine holds what it held before, or, where it cannot be reached, is left for
    `reconcile` with its calls held. Raises EngineMoving while another process changes its weights.
    """
    engine.refresh_from_db(fields=["weights", "moving_since"])
    if engine.moving_since is None and engine.weights_id == (whole.id if whole else None):
        return
    before = engine.weights
    claim_weights(engine)
    try:
        _exchange(whole, base_dir=base_dir, client=client)
    except ServiceError:
        _exchange(before, base_dir=base_dir, client=client)
        _settle(engine, before)
        raise
    _drop_adapters(engine, client=client)
    _settle(engine, whole)
    log.info("engine.weights", engine=engine.id, version=whole.id if whole else "base")


def claim_weights(engine: Engine) -> None:
    """Say that the engine's weights are about to change, and wait until gateways hold their calls."""
    free = Engine.objects.filter(pk=engine.pk, moving_since=engine.moving_since)
    is_taken = engine.moving_since is not None and not is_stuck(engine)
    if is_taken or free.update(moving_since=timezone.now()) != 1:
        raise EngineMoving("the engine's weights are being changed by another process")
    notify_processes(ROUTES_CHANGED)
    time.sleep(HEAR_S)


def is_stuck(engine: Engine) -> bool:
    """Say whether whoever began to change the engine's weights must be gone."""
    return engine.moving_since is not None and (timezone.now() - engine.moving_since).total_seconds() > STUCK_S


def _exchange(whole: Version | None, *, base_dir: str, client: EngineClient) -> None:
    client.pause()
    client.reload_weights(whole.adapter_path if whole else base_dir)
    client.name_weights(whole.id if whole else BASE_WEIGHTS)
    client.resume()


def _drop_adapters(engine: Engine, *, client: EngineClient) -> None:
    loaded = Deployment.objects.filter(engine=engine, state=DeploymentState.LOADED).select_related("version")
    for deployment in loaded:
        if deployment.version.is_adapter:
            client.unload_adapter(deployment.version.engine_name)
        record_deployment(engine, deployment.version, state=DeploymentState.UNLOADED)


def _settle(engine: Engine, whole: Version | None) -> None:
    Engine.objects.filter(pk=engine.pk).update(weights=whole, moving_since=None)
    engine.weights, engine.moving_since = whole, None
    notify_processes(ROUTES_CHANGED)


def record_deployment(engine: Engine, version: Version, *, state: DeploymentState, error: str = "") -> bool:
    """Write what is known; returns whether that is news."""
    same = Deployment.objects.filter(engine=engine, version=version, state=state, error=error)
    if same.exists():
        return False
    changes = {"state": state, "error": error, "changed_at": timezone.now()}
    Deployment.objects.update_or_create(engine=engine, version=version, defaults=changes)
    return True
