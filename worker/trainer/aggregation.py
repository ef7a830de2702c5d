"""How much each token of an optimizer step weighs in the loss. Pure: standard library only.

The weights of all its samples' tokens are known before any is cut into micro-batches or dealt to a rank, so the loss is
the same however that is done. Which aggregation is chosen changes what is learnt: a mean over tokens lets long answers
count for more, a mean over sequences lets an agent's many short turns outvote its long ones.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from apps.core.contracts.training import LossSettings, TrainSample

Weigh = Callable[[Sequence[TrainSample], LossSettings], list[float]]


def weigh_samples(samples: Sequence[TrainSample], loss: LossSettings) -> list[float]:
    """Return for each sample the weight of each of its completion tokens; the step's loss is the weighted sum."""
    return WEIGHTS[loss.aggregation](samples, loss)


def _token_mean(samples: Sequence[TrainSample], _loss: LossSettings) -> list[float]:
    """One mean over all tokens of the step: DAPO (arXiv 2503.14476), section 3.3."""
    n_tokens = sum(map(_length, samples))
    return [1 / n_tokens] * len(samples)


def _sequence_mean(samples: Sequence[TrainSample], _loss: LossSettings) -> list[float]:
    """Mean over sequences of each one's mean over tokens: GRPO (arXiv 2402.03300), eq. 3."""
    return [1 / (_length(sample) * len(samples)) for sample in samples]


def _constant(samples: Sequence[TrainSample], loss: LossSettings) -> list[float]:
    """Sum over tokens by a constant, so that no length is favoured: Dr.GRPO (arXiv 2503.20783)."""
    return [1 / (loss.constant_tokens * len(samples))] * len(samples)


def _rollout_mean(samples: Sequence[TrainSample], _loss: LossSettings) -> list[float]:
    """Mean over trajectories of each one's mean over tokens: one that is split into many steps counts once."""
    n_tokens: Counter[str] = Counter()
    for sample in samples:
        n_tokens[sample.trajectory_id] += _length(sample)
    return [1 / (n_tokens[sample.trajectory_id] * len(n_tokens)) for sample in samples]


def _length(sample: TrainSample) -> int:
    return len(sample.completion_ids)


WEIGHTS: Mapping[str, Weigh] = {
    "token_mean": _token_mean,
    "sequence_mean": _sequence_mean,
    "constant": _constant,
    "rollout_mean": _rollout_mean,
}
