"""Every Celery entry point. A task takes ids, calls one service, and alone decides whether to try again."""

from worker.tasks import bulk, grading, hardware, housekeep, queues, refresh, train, transfers

__all__ = ["bulk", "grading", "hardware", "housekeep", "queues", "refresh", "train", "transfers"]
