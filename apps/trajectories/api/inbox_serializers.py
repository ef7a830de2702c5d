"""Shapes of the inbox in the REST API."""

from typing import Any

from rest_framework import serializers

from apps.core.ids import ID_MAX_LENGTH
from apps.core.serializers import PageQuerySerializer, PageSerializer, StrictSerializer
from apps.trajectories.inbox import Kind


class InboxQuerySerializer(PageQuerySerializer):
    kind = serializers.ChoiceField(choices=Kind.choices, default=Kind.SET_ASIDE)


class InboxItemSerializer(serializers.Serializer[Any]):
    """A call outside its conversation, and why. `trajectory_id` is a side call's or that of one that was
    moved in, `step_id` a side call's."""

    id = serializers.CharField()
    kind = serializers.CharField()
    agent = serializers.CharField()
    dialect = serializers.CharField()
    status = serializers.CharField()
    why = serializers.CharField()
    at = serializers.DateTimeField()
    trajectory_id = serializers.CharField()
    step_id = serializers.CharField()
    index = serializers.IntegerField(allow_null=True)
    title = serializers.CharField()


class InboxPageSerializer(PageSerializer):
    items = InboxItemSerializer(many=True)


class AssignBodySerializer(StrictSerializer):
    trajectory = serializers.CharField(max_length=ID_MAX_LENGTH, help_text="id of a trajectory of the call's agent")


class SideCallBodySerializer(StrictSerializer):
    side = serializers.BooleanField(help_text="true: beside the conversation, not trained on; false: part of it")
