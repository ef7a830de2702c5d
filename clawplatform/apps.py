from django.apps import AppConfig


class ClawplatformConfig(AppConfig):
    name = "clawplatform"

    def ready(self) -> None:
        """Make our Celery application the current one, so that every process queues its tasks on our broker."""
        from clawplatform import celery  # noqa: F401, PLC0415 (the apps must be loaded)
