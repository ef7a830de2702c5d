"""Entry points of exports and imports, and of what keeps them going when a worker or a message is lost."""

from celery import shared_task

from apps.core.contracts.tasks import RUN_EXPORT, RUN_IMPORT, TEND_TRANSFERS
from apps.feedback.exports import SHAPES
from apps.feedback.importing import reward_imported
from apps.trajectories.datasets import export_job, exporting, import_job, importing


@shared_task(name=RUN_EXPORT)
def run_export(export_id: str) -> None:
    """Write an export, or go on with it."""
    export_job.run_export(export_id, shapes=SHAPES)


@shared_task(name=RUN_IMPORT)
def run_import(import_id: str) -> None:
    """Take a file in, or go on with it."""
    import_job.run_import(import_id, reward=reward_imported)


@shared_task(name=TEND_TRANSFERS)
def tend_transfers() -> None:
    """Queue again what lost its worker, and remove files whose time is over."""
    exporting.resend_exports()
    importing.resend_imports()
    exporting.expire_exports()
