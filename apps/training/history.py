"""A run's history in words, and the news of it."""

from apps.core.live import publish_news
from apps.training.models import Run, RunEvent


def record_run_event(run: Run, kind: str, message: str) -> None:
    """Add a line to the run's history and tell open pages."""
    RunEvent.objects.create(run=run, kind=kind, message=message)
    publish_news(run.project_id, kind="run", object_id=run.id)
