"""Every Celery entry point. A task takes ids, calls one service, and alone decides whether to try again."""

from worker.tasks import housekeep, refresh, train, transfers

__all__ = ["housekeep", "refresh", "train", "transfers"]
