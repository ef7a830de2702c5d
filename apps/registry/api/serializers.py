"""Shapes of policies, versions and engines in the REST API. They show; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.registry.models import AliasName, Engine, Policy, Teacher, Version
from apps.registry.services import N_SHARES


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
            "given_up_at",
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
        aliases = list(policy.aliases.select_related("version"))
        n_taken = sum(alias.live_share for alias in aliases)  # live's own is 0
        return {
            alias.name: {
                "version": alias.version_id,
                "number": alias.version.number,
                "switched_at": alias.switched_at.isoformat(),
                "live_share": N_SHARES - n_taken if alias.name == AliasName.LIVE else alias.live_share,
            }
            for alias in aliases
        }


class EngineSerializer(serializers.ModelSerializer[Engine]):
    """An engine's health and which of the project's versions it has.

    Only a provider shows its address: that of the platform's own engines is the operators' business. Of a credential
    nobody sees more than its last four characters.
    """

    base_url = serializers.SerializerMethodField()
    versions = serializers.SerializerMethodField()

    class Meta:
        model = Engine
        fields = [
            "id",
            "kind",
            "base_url",
            "credential_last_four",
            "base_model",
            "state",
            "is_enabled",
            "max_in_flight",
            "last_seen_at",
            "last_error",
            "versions",
        ]
        read_only_fields = fields

    def get_base_url(self, engine: Engine) -> str | None:
        return engine.base_url if engine.project_id else None

    def get_versions(self, engine: Engine) -> list[str]:
        loaded: dict[str, list[str]] = self.context.get("loaded", {})
        return loaded.get(engine.id, [])


class VersionPageSerializer(serializers.Serializer[Any]):
    """Newest first; ask for the next page with `?before=<next_before>`."""

    items = VersionSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)


class EngineListSerializer(serializers.Serializer[Any]):
    """All engines that serve the policy's base model, and the project's providers."""

    items = EngineSerializer(many=True)


class AliasBodySerializer(StrictSerializer):
    """Which version the alias shall name."""

    version = serializers.CharField(max_length=32, help_text="id of a verified version of the policy")


class SplitBodySerializer(StrictSerializer):
    """How the calls to the policy's bare name are shared out, in per cent that make 100."""

    live = serializers.IntegerField(min_value=1, max_value=100)
    candidate = serializers.IntegerField(min_value=0, max_value=99, default=0)
    previous = serializers.IntegerField(min_value=0, max_value=99, default=0)


class ProviderBodySerializer(StrictSerializer):
    """A provider with OpenAI's API."""

    base_url = serializers.CharField(
        max_length=200, help_text="what an OpenAI client would be given, mostly ending in /v1"
    )
    credential = serializers.CharField(
        max_length=1000, allow_blank=True, default="", help_text="sent as `Authorization: Bearer`; never shown again"
    )
    max_in_flight = serializers.IntegerField(
        min_value=1, max_value=100_000, allow_null=True, default=None, help_text="calls at once per gateway process"
    )


class ProviderChangeSerializer(StrictSerializer):
    """What of a provider can be changed."""

    credential = serializers.CharField(max_length=1000, allow_blank=True, required=False)
    max_in_flight = serializers.IntegerField(min_value=1, max_value=100_000, allow_null=True, required=False)
    is_enabled = serializers.BooleanField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError(f"name at least one of {', '.join(self.fields)}")
        return attrs


class TeacherSerializer(serializers.ModelSerializer[Teacher]):
    """A provider's model under a name of the project."""

    class Meta:
        model = Teacher
        fields = ["id", "name", "model", "engine", "created_at"]
        read_only_fields = fields


class TeacherListSerializer(serializers.Serializer[Any]):
    """By name."""

    items = TeacherSerializer(many=True)


class TeacherBodySerializer(StrictSerializer):
    """Which model of which provider, and how the project's agents call it."""

    name = serializers.CharField(max_length=100)
    model = serializers.CharField(max_length=200, help_text="as the provider calls it")
    engine = serializers.CharField(max_length=32, help_text="id of one of the project's providers")
