"""Shapes of people, projects, agents, keys and their policies in the REST API.

A key's secret and a person's first password are shown once, by the request that makes them.
"""

from typing import Any

from rest_framework import serializers

from apps.accounts.limited import HIGHEST_LIMIT
from apps.accounts.models import (
    EMAIL_MAX_LENGTH,
    Agent,
    ApiKey,
    CaptureMode,
    Membership,
    PassedCalls,
    Project,
    Role,
    Scope,
)
from apps.core.redaction import BUILT_IN_NAMES, LONGEST_PATTERN
from apps.core.serializers import StrictSerializer


class ProjectSerializer(serializers.ModelSerializer[Project]):
    team = serializers.CharField(source="team.name", read_only=True)
    team_id = serializers.CharField(read_only=True)

    class Meta:
        model = Project
        fields = ["id", "slug", "name", "team", "team_id", "created_at"]
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
            "is_one_session",
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


class MemberSerializer(serializers.ModelSerializer[Membership]):
    id = serializers.CharField(source="user_id", read_only=True, help_text="the person's")
    email = serializers.EmailField(source="user.email", read_only=True)
    name = serializers.CharField(source="user.name", read_only=True)
    added_at = serializers.DateTimeField(source="created_at", read_only=True)

    class Meta:
        model = Membership
        fields = ["id", "email", "name", "role", "added_at"]
        read_only_fields = fields


class NewMemberSerializer(MemberSerializer):
    """The only answer that holds the first password."""

    first_password = serializers.CharField(
        read_only=True, help_text='pass it on, they can change it; "" for a person who has an account'
    )

    class Meta(MemberSerializer.Meta):
        fields = [*MemberSerializer.Meta.fields, "first_password"]


class MemberListSerializer(serializers.Serializer[Any]):
    items = MemberSerializer(many=True)


class RoleBodySerializer(StrictSerializer):
    role = serializers.ChoiceField(choices=Role.choices)


class MemberBodySerializer(RoleBodySerializer):
    email = serializers.EmailField(max_length=EMAIL_MAX_LENGTH)
    name = serializers.CharField(max_length=100, allow_blank=True, default="", help_text="of a person without account")


class AgentBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=100)


class KeyBodySerializer(StrictSerializer):
    name = serializers.CharField(max_length=100, allow_blank=True, default="")
    scope = serializers.ChoiceField(choices=Scope.choices, default=Scope.AGENT)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)
    is_one_session = serializers.BooleanField(default=False, help_text="all calls with it are one trajectory")


def _limit(what: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        required=False, allow_null=True, min_value=1, max_value=HIGHEST_LIMIT, help_text=f"{what}; null: no limit"
    )


class LimitsSerializer(StrictSerializer):
    """Both what is answered and what may be changed: a limit that is not named stays as it is."""

    requests_per_minute = _limit("calls begun in a minute")
    tokens_per_minute = _limit("tokens of requests and answers in a minute")
    max_in_flight = _limit("calls under way at one moment")
    tokens_per_day = _limit("tokens of requests and answers in a UTC day")


class OwnPatternSerializer(StrictSerializer):
    name = serializers.SlugField(max_length=20, help_text="stands in place of what was taken out")
    pattern = serializers.CharField(max_length=LONGEST_PATTERN, trim_whitespace=False, help_text="RE2 syntax")


class CaptureBodySerializer(StrictSerializer):
    mode = serializers.ChoiceField(choices=CaptureMode.choices)
    patterns = serializers.ListField(
        child=serializers.CharField(max_length=20), required=False, help_text=f"of {', '.join(BUILT_IN_NAMES)}"
    )
    own_patterns = OwnPatternSerializer(many=True, required=False)


class PassedCallsSerializer(serializers.ModelSerializer[PassedCalls]):
    class Meta:
        model = PassedCalls
        fields = ["day", "n_calls"]
        read_only_fields = fields


class CaptureSerializer(serializers.ModelSerializer[Agent]):
    mode = serializers.CharField(source="capture", read_only=True)
    own_patterns = OwnPatternSerializer(many=True, read_only=True)
    known_patterns = serializers.SerializerMethodField()
    passed_calls = serializers.SerializerMethodField()

    class Meta:
        model = Agent
        fields = ["mode", "patterns", "own_patterns", "known_patterns", "passed_calls"]
        read_only_fields = fields

    def get_known_patterns(self, _agent: Agent) -> list[str]:
        """Names of the built-in patterns."""
        return list(BUILT_IN_NAMES)

    def get_passed_calls(self, agent: Agent) -> list[dict[str, Any]]:
        """Calls that passed through uncaptured on the last days, newest first."""
        return list(PassedCallsSerializer(agent.recent_passed_calls(), many=True).data)
