"""How much each token weighs, worked by hand."""

import pytest

from apps.core.contracts.training import LossSettings, TrainSample
from tests.worker.trainer.samples import make_sample
from worker.trainer.aggregation import WEIGHTS, weigh_samples


def sample(trajectory_id: str, n_tokens: int) -> TrainSample:
    return make_sample(trajectory_id=trajectory_id, completion_ids=(1,) * n_tokens, logprobs=(-1.0,) * n_tokens)


SAMPLES = [sample("long", 6), sample("long", 2), sample("short", 2)]


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [1 / 10] * 3),
        ("sequence_mean", [1 / 18, 1 / 6, 1 / 6]),
        ("constant", [1 / 300] * 3),
        ("rollout_mean", [1 / 16, 1 / 16, 1 / 4]),  # 8 tokens of one rollout, 2 of the other
    ],
)
def test_weights_worked_by_hand(aggregation: str, expected: list[float]) -> None:
    loss = LossSettings(aggregation=aggregation, constant_tokens=100)
    assert weigh_samples(SAMPLES, loss) == pytest.approx(expected)


@pytest.mark.parametrize("aggregation", [name for name in WEIGHTS if name != "constant"])
def test_the_weights_of_all_tokens_add_up_to_one(aggregation: str) -> None:
    weights = weigh_samples(SAMPLES, LossSettings(aggregation=aggregation))
    total = sum(weight * len(each.completion_ids) for weight, each in zip(weights, SAMPLES, strict=True))
    assert total == pytest.approx(1)


def test_a_trajectory_split_into_more_steps_counts_no_more() -> None:
    loss = LossSettings(aggregation="rollout_mean")
    whole = weigh_samples([sample("a", 8), sample("b", 2)], loss)
    split = weigh_samples([sample("a", 4), sample("a", 4), sample("b", 2)], loss)
    assert split == pytest.approx([whole[0], whole[0], whole[1]])
