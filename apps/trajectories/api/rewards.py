"""Rewards as REST shows them: null where there is none, and while the caller reviews the trajectory blind."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from apps.accounts.access import Caller
from apps.trajectories.blindness import Hidden, find_hidden


def sight_of(caller: Caller) -> dict[str, Hidden]:
    """Return the context that a serializer with rewards needs."""
    return {"hidden": find_hidden(caller)}


def is_hidden(row: Any, context: Mapping[str, Any]) -> bool:
    """Say whether the caller may not know the reward of a trajectory, or of something in it."""
    return getattr(row, "trajectory_id", None) in context["hidden"] or getattr(row, "pk", None) in context["hidden"]


class RewardField(serializers.FloatField):
    """A reward of the row, by the field's own name. Without `context=sight_of(caller)` it is an error."""

    def __init__(self, **kwargs: Any) -> None:
        help_text = "also null while the caller reviews the trajectory in a blind queue"
        super().__init__(source="*", read_only=True, allow_null=True, help_text=help_text, **kwargs)

    def to_representation(self, value: Any) -> Any:
        reward = getattr(value, self.field_name or "")
        return None if reward is None or is_hidden(value, self.context) else super().to_representation(reward)
