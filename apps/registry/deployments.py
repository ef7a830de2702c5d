"""Which version is on which engine: loads, unloads, and keeps the rows true. Judges no version, moves no alias."""

from django.utils import timezone

from apps.registry.client import EngineClient, EngineRefused
from apps.registry.models import Deployment, DeploymentState, Engine, Version


def load_version(engine: Engine, version: Version, *, client: EngineClient) -> None:
    """Put the version on the engine under its name, unless it is there. Raises the client's errors, recorded."""
    if version.is_base:
        return
    if version.engine_name not in {model.name for model in client.list_models()}:
        try:
            client.load_adapter(version.engine_name, version.adapter_path)
        except EngineRefused as error:
            record_deployment(engine, version, state=DeploymentState.FAILED, error=error.message)
            raise
    record_deployment(engine, version, state=DeploymentState.LOADED)


def unload_version(engine: Engine, version: Version, *, client: EngineClient) -> None:
    """Take the version off the engine. Its row changes only when the engine has agreed."""
    client.unload_adapter(version.engine_name)
    record_deployment(engine, version, state=DeploymentState.UNLOADED)


def record_deployment(engine: Engine, version: Version, *, state: DeploymentState, error: str = "") -> bool:
    """Write what is known; returns whether that is news."""
    same = Deployment.objects.filter(engine=engine, version=version, state=state, error=error)
    if same.exists():
        return False
    changes = {"state": state, "error": error, "changed_at": timezone.now()}
    Deployment.objects.update_or_create(engine=engine, version=version, defaults=changes)
    return True
