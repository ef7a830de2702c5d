"""Shapes of submitted steps: what an agent that works in tokens tells of each. They check and pack; they never save."""

from dataclasses import dataclass
from typing import Any

from rest_framework import serializers

from apps.core.errors import InvalidInput
from apps.core.serializers import StrictSerializer, read_fields
from apps.trajectories.api.token_fields import FiniteFloatField, LogProbsField, TokenIdsField
from apps.trajectories.calls import Sampling
from apps.trajectories.services import check_metadata
from apps.trajectories.submitting import MAX_STEPS, StepDraft, Submitted

_HELP = {
    "prompt_ids": "the tokens that the model was given",
    "response_ids": "the tokens that it sampled, end token included",
    "log_probs": "one for each of response_ids, in nats, at the sampling temperature; without them the step is kept, "
    "but no policy gradient uses it",
    "reward": "-1 to 1; left out, nothing is said of it",
    "version": "the weights that spoke: v3, slug@v3 or an id; tokens that this platform generated need none",
    "client_step_id": "your name for the step: sent again, it is the same step",
    "text": "the response in words, for people to read",
}


class StepBodySerializer(StrictSerializer):
    """One submitted step."""

    prompt_ids = TokenIdsField(help_text=_HELP["prompt_ids"])
    response_ids = TokenIdsField(help_text=_HELP["response_ids"])
    log_probs = LogProbsField(required=False, allow_null=True, default=None, help_text=_HELP["log_probs"])
    reward = FiniteFloatField(
        required=False, allow_null=True, default=None, min_value=-1, max_value=1, help_text=_HELP["reward"]
    )
    metadata = serializers.DictField(child=serializers.JSONField(allow_null=True), default=dict)
    version = serializers.CharField(allow_blank=True, max_length=100, default="", help_text=_HELP["version"])
    client_step_id = serializers.CharField(
        allow_blank=True, max_length=100, default="", help_text=_HELP["client_step_id"]
    )
    finish_reason = serializers.CharField(allow_blank=True, max_length=30, default="")
    text = serializers.CharField(
        allow_blank=True, trim_whitespace=False, max_length=1_000_000, default="", help_text=_HELP["text"]
    )
    temperature = FiniteFloatField(min_value=0, max_value=100, default=1.0)
    top_p = FiniteFloatField(min_value=0, max_value=1, default=1.0)
    top_k = serializers.IntegerField(min_value=-1, max_value=2**31 - 1, default=-1, help_text="-1 and 0: off")


class StepsBodySerializer(StrictSerializer):
    """A list of submitted steps, for the schema's sake; see `read_step_bodies`."""

    steps = StepBodySerializer(many=True, help_text=f"1 to {MAX_STEPS}, in order")


class _RawStepsSerializer(StrictSerializer):
    steps = serializers.ListField(child=serializers.DictField(), min_length=1, max_length=MAX_STEPS)


class SubmittedStepSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    index = serializers.IntegerField()
    client_step_id = serializers.CharField()
    version = serializers.CharField(allow_null=True, help_text="the weights' id, as the platform knows it")
    is_exact = serializers.BooleanField()
    is_new = serializers.BooleanField(help_text="false: the trajectory had it already")


class SubmittedStepsSerializer(serializers.Serializer[Any]):
    """What became of each step, in the order in which they were sent."""

    steps = SubmittedStepSerializer(many=True)
    n_new = serializers.IntegerField()
    reward = serializers.FloatField(allow_null=True, help_text="the trajectory's reward now")


@dataclass(frozen=True, kw_only=True)
class RewardedDraft:
    """A submitted step and what its maker says it was worth."""

    draft: StepDraft
    reward: float | None


def read_step_bodies(data: Any) -> list[RewardedDraft]:
    """Return the checked steps of a body. Raises InvalidInput that names the step and its field, or DRF's error."""
    bodies = read_fields(_RawStepsSerializer, data)["steps"]
    return [_read_step(place, body) for place, body in enumerate(bodies)]


def _read_step(place: int, body: dict[str, Any]) -> RewardedDraft:
    serializer = StepBodySerializer(data=body)
    if not serializer.is_valid():
        name, reasons = next(iter(serializer.errors.items()))
        reason = reasons[0] if isinstance(reasons, list) else next(iter(reasons.values()))[0]
        raise InvalidInput(f"steps[{place}].{name}: {reason}", field=f"steps[{place}].{name}")
    fields = serializer.validated_data
    check_metadata(fields["metadata"], field=f"steps[{place}].metadata")
    sampling = Sampling(temperature=fields["temperature"], top_p=fields["top_p"], top_k=fields["top_k"])
    draft = StepDraft(
        prompt_ids=fields["prompt_ids"],
        completion_ids=fields["response_ids"],
        logprobs=fields["log_probs"],
        version=fields["version"],
        client_step_id=fields["client_step_id"],
        metadata=fields["metadata"],
        finish_reason=fields["finish_reason"],
        text=fields["text"],
        sampling=sampling,
    )
    return RewardedDraft(draft=draft, reward=fields["reward"])


def show_submitted(submitted: list[Submitted], *, reward: float | None) -> dict[str, Any]:
    """Return what became of the steps."""
    steps = [
        {
            "id": item.step.pk,
            "index": item.step.index,
            "client_step_id": item.step.client_step_id,
            "version": item.step.version_id,
            "is_exact": item.step.is_exact,
            "is_new": item.is_new,
        }
        for item in submitted
    ]
    return {"steps": steps, "n_new": sum(item.is_new for item in submitted), "reward": reward}
