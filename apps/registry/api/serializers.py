"""Shapes of policies, versions and engines in the REST API. They show; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.registry.models import Engine, Policy, Version


class VersionSerializer(serializers.ModelSerializer[Version]):
    """One version with its lineage and how it was verified. The probe's numbers stay inside."""

    aliases = serializers.SerializerMethodField()

    class Meta:
        model = Version
        fields = [
            "id",
            "number",
            "parent",
            "engine_name",
            "sha256",
            "state",
            "error",
            "aliases",
            "goes_live",
            "lineage",
            "verification",
            "created_at",
            "ready_at",
            "retired_at",
        ]
        read_only_fields = fields

    def get_aliases(self, version: Version) -> list[str]:
        return sorted(alias.name for alias in version.aliases.all())


class PolicySerializer(serializers.ModelSerializer[Policy]):
    """The policy and which version each alias names."""

    aliases = serializers.SerializerMethodField()

    class Meta:
        model = Policy
        fields = ["id", "slug", "base_model", "aliases", "created_at"]
        read_only_fields = fields

    def get_aliases(self, policy: Policy) -> dict[str, dict[str, Any]]:
        return {
            alias.name: {
                "version": alias.version_id,
                "number": alias.version.number,
                "switched_at": alias.switched_at.isoformat(),
            }
            for alias in policy.aliases.select_related("version")
        }


class EngineSerializer(serializers.ModelSerializer[Engine]):
    """An engine's health and which of the project's versions it has. Its address is the operator's business."""

    versions = serializers.SerializerMethodField()

    class Meta:
        model = Engine
        fields = ["id", "base_model", "state", "is_enabled", "last_seen_at", "last_error", "versions"]
        read_only_fields = fields

    def get_versions(self, engine: Engine) -> list[str]:
        loaded: dict[str, list[str]] = self.context["loaded"]
        return loaded.get(engine.id, [])


class VersionPageSerializer(serializers.Serializer[Any]):
    """Newest first; ask for the next page with `?before=<next_before>`."""

    items = VersionSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)


class EngineListSerializer(serializers.Serializer[Any]):
    """All engines that serve the policy's base model."""

    items = EngineSerializer(many=True)


class AliasBodySerializer(StrictSerializer):
    """Which version the alias shall name."""

    version = serializers.CharField(max_length=32, help_text="id of a verified version of the policy")
