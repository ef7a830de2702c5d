"""Fields for long lists of numbers, checked and packed at C's speed: DRF's own look at each number by itself."""

import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.core.contracts.arrays import pack_ids, pack_logprobs

LEAST_LOGPROB = -3.0e38  # of a float32


@extend_schema_field({"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1})
class TokenIdsField(serializers.Field[bytes, list[int], bytes, Any]):
    """A list of at least one token id, 0 or more each; packed as int32."""

    def to_internal_value(self, data: Any) -> bytes:
        if not isinstance(data, list) or not data:
            raise serializers.ValidationError("must be a list of at least one token id")
        if any(type(item) is not int for item in data) or min(data) < 0:
            raise serializers.ValidationError("token ids are whole numbers from 0 on")
        try:
            return pack_ids(data)
        except OverflowError as error:
            raise serializers.ValidationError("token ids are below 2147483648") from error


@extend_schema_field({"type": "array", "items": {"type": "number", "maximum": 0}})
class LogProbsField(serializers.Field[bytes, list[float], bytes, Any]):
    """A list of log-probs in nats, 0 or less each; packed as float32."""

    def to_internal_value(self, data: Any) -> bytes:
        if not isinstance(data, list):
            raise serializers.ValidationError("must be a list of log-probs")
        if any(type(item) not in {int, float} for item in data):
            raise serializers.ValidationError("log-probs are numbers")
        try:
            return self._pack(data)
        except OverflowError as error:
            raise serializers.ValidationError("a log-prob is too large for a float") from error

    def _pack(self, data: list[float]) -> bytes:
        if not all(map(math.isfinite, data)) or min(data, default=0.0) < LEAST_LOGPROB:
            raise serializers.ValidationError("log-probs are finite: a token that was sampled has a probability")
        if max(data, default=0.0) > 0:
            raise serializers.ValidationError("log-probs are 0 or less; send the log of the probability, in nats")
        return pack_logprobs(data)


class FiniteFloatField(serializers.FloatField):
    """A number; DRF would take "nan" for one."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, (str, bool)):
            self.fail("invalid")
        value = super().to_internal_value(data)
        if not math.isfinite(value):
            self.fail("invalid")
        return value
