from django.apps import AppConfig


class ClawplatformConfig(AppConfig):
    name = "clawplatform"
