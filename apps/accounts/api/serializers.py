"""Shapes of projects, agents and keys in the REST API. A key's secret is shown once, by the request that makes it."""

from typing import Any

from rest_framework import serializers

from apps.accounts.models import Agent, ApiKey, Project, Scope
from apps.core.serializers import StrictSerializer


class ProjectSerializer(serializers.ModelSerializer[Project]):
    team = serializers.CharField(source="team.name", read_only=True)

    class Meta:
        model = Project
        fields = ["id", "slug", "name", "team", "created_at"]
        read_only_fields = fields


class AgentSerializer(serializers.ModelSerializer[Agent]):
    class Meta:
        model = Agent
        fields = ["id", "slug", "name", "created_at"]
        read_only_fields = fields


class KeySerializer(serializers.ModelSerializer[ApiKey]):
    agent = serializers.CharField(source="agent_id", read_only=True)

    class Meta:
        model = ApiKey
        fields = [
            "id",
            "agent",
            "name",
            "scope",
            "prefix",
            "last_four",
            "created_at",
            "last_used_at",
            "expires_at",
            "disabled_at",
        ]
        read_only_fields = fields


class NewKeySerializer(KeySerializer):
    """The only answer that holds the secret."""

    secret = serializers.CharField(read_only=True)

    class Meta(KeySerializer.Meta):
        fields = [*KeySerializer.Meta.fields, "secret"]


class ProjectListSerializer(serializers.Serializer[Any]):
    items = ProjectSerializer(many=True)


class AgentListSerializer(serializers.Serializer[Any]):
    items = AgentSerializer(many=True)


class KeyListSerializer(serializers.Serializer[Any]):
    items = KeySerializer(many=True)


class ProjectQuerySerializer(StrictSerializer):
    project = serializers.SlugField(required=False, default=None, help_text="slug; a key needs none, it has its own")


class AgentBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=60)


class KeyBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=100, allow_blank=True, default="")
    scope = serializers.ChoiceField(choices=Scope.choices, default=Scope.AGENT)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
