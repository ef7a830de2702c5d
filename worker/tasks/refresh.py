"""Entry points of the queues `refresh` and `reconcile`: new versions onto engines, and engines as the rows ask for."""

from celery import shared_task

from apps.core.contracts.tasks import RECONCILE_ENGINES, REFRESH_VERSION
from apps.registry.models import Version
from apps.registry.reconcile import reconcile_engines as reconcile
from apps.registry.refresh import refresh_version as refresh


@shared_task(name=REFRESH_VERSION)
def refresh_version(version_id: str) -> None:
    """Load, verify and let speak. What could not be reached is asked for again by `reconcile_engines`."""
    refresh(Version.objects.select_related("policy__project__team").get(pk=version_id))


@shared_task(name=RECONCILE_ENGINES)
def reconcile_engines() -> None:
    """One pass over all engines."""
    reconcile()
