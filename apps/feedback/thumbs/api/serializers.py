"""Shapes of thumbs and their tokens in the REST API. They show and check; they never save."""

from typing import Any

from rest_framework import serializers

from apps.core.serializers import StrictSerializer
from apps.feedback.services import MAX_END_USER
from apps.feedback.thumbs.models import DEFAULT_PER_MINUTE, ThumbToken
from apps.feedback.thumbs.services import MAX_ORIGINS, MAX_PER_MINUTE
from apps.trajectories.api.token_fields import FiniteFloatField

MAX_TEXT = 2000  # of somebody on the internet


class ThumbBodySerializer(StrictSerializer):
    value = FiniteFloatField(
        allow_null=True, min_value=-1, max_value=1, help_text="1: good, -1: bad; null takes the thumb back"
    )
    text = serializers.CharField(required=False, allow_blank=True, default="", max_length=MAX_TEXT)
    end_user = serializers.CharField(
        required=False,
        allow_blank=True,
        default="",
        max_length=MAX_END_USER,
        help_text="your name for the user, best one that says nothing: each has one voice",
    )


class ThumbSerializer(serializers.Serializer[Any]):
    """All that is told."""

    accepted = serializers.BooleanField()


class ThumbTokenBodySerializer(StrictSerializer):
    agent = serializers.SlugField(max_length=60)
    name = serializers.CharField(required=False, allow_blank=True, default="", max_length=100)
    origins = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        default=list,
        max_length=MAX_ORIGINS,
        help_text="pages that may use it, as in https://shop.example; none: any",
    )
    per_minute = serializers.IntegerField(
        required=False, default=DEFAULT_PER_MINUTE, min_value=1, max_value=MAX_PER_MINUTE
    )


class ThumbTokenSerializer(serializers.ModelSerializer[ThumbToken]):
    """A token for web pages. It is no secret: it can judge one agent's answers, and read nothing."""

    agent = serializers.CharField(source="agent.slug", read_only=True)

    class Meta:
        model = ThumbToken
        fields = [
            "id",
            "agent",
            "name",
            "token",
            "origins",
            "per_minute",
            "created_at",
            "last_used_at",
            "expires_at",
            "disabled_at",
        ]
        read_only_fields = fields


class ThumbTokenPageSerializer(serializers.Serializer[Any]):
    items = ThumbTokenSerializer(many=True)
    next_before = serializers.CharField(allow_null=True)
