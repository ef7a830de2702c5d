"""The Celery application. Task code lives in `worker.tasks`; names and queues in `apps.core.contracts.tasks`."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawplatform.settings")

app = Celery("claw", include=["worker.tasks"])
app.config_from_object("django.conf:settings", namespace="CELERY")
