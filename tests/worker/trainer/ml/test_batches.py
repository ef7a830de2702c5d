"""Batches: what is refused, and how samples become optimizer steps."""

import math
from typing import Any

import pytest

from apps.core.contracts.training import Probe, TrainSample
from tests.worker.trainer.samples import make_batch, make_sample, make_samples
from worker.trainer.batches import check_batch, split_minibatches
from worker.trainer.errors import BatchError


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ({"completion_ids": (4,)}, "1 completion tokens but 2 log-probs"),
        ({"completion_ids": (), "logprobs": ()}, "empty prompt or completion"),
        ({"prompt_ids": ()}, "empty prompt or completion"),
        ({"completion_ids": (4, 512)}, "outside the model's vocabulary of 512"),
        ({"prompt_ids": (-1,)}, "outside the model's vocabulary"),
        ({"prompt_ids": (1,) * 255}, "longer than the model's 256 positions"),
        ({"logprobs": (-1.0, math.nan)}, "not a finite number"),
        ({"advantage": math.inf}, "not a finite number"),
        ({"reward": math.nan}, "not a finite number"),
        ({"logprobs": (-1.0, 0.5)}, "above zero"),
        ({"temperature": 0.0}, "greedy"),
    ],
)
def test_a_bad_sample_is_refused_by_name(spoilt: dict[str, Any], message: str) -> None:
    check_batch(make_batch(1, samples=(make_sample(),)), step=1, vocab_size=512, max_length=256)  # passes
    batch = make_batch(1, samples=(make_sample(), make_sample(step_id="step_bad", **spoilt)))
    with pytest.raises(BatchError, match=message) as caught:
        check_batch(batch, step=1, vocab_size=512, max_length=256)
    assert "step_bad" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": ()}, "empty"),
        ({"step": 2}, "step 2"),
        ({"samples": (make_sample(advantage=0.0), make_sample(advantage=0.0))}, "Every advantage"),
        ({"probe": Probe(token_ids=(1,))}, "probe"),
        ({"probe": Probe(token_ids=(1, 999))}, "probe"),
    ],
)
def test_a_batch_that_would_teach_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    batch = make_batch(**{"step": 1, **changes})
    with pytest.raises(BatchError, match=message):
        check_batch(batch, step=1, vocab_size=512, max_length=256)


def test_minibatches_hold_each_sample_once_in_near_equal_parts() -> None:
    samples = make_samples(21, seed=0)
    parts = split_minibatches(samples, minibatch_samples=4, seed=7, step=1)
    assert sorted(len(part) for part in parts) == [4, 4, 4, 4, 5]
    assert sorted(sample.step_id for part in parts for sample in part) == sorted(s.step_id for s in samples)


def test_minibatches_depend_only_on_seed_and_step() -> None:
    samples = make_samples(12, seed=0)
    first = split_minibatches(samples, minibatch_samples=4, seed=7, step=1)
    assert first == split_minibatches(samples, minibatch_samples=4, seed=7, step=1)
    assert first != split_minibatches(samples, minibatch_samples=4, seed=7, step=2)


def make_turns(name: str, n_turns: int) -> list[TrainSample]:
    return [make_sample(step_id=f"{name}_{turn}", trajectory_id=name) for turn in range(n_turns)]


def test_a_trajectory_is_never_split_between_optimizer_steps() -> None:
    turns = zip(*(make_turns(f"traj_{number}", 5) for number in range(6)), strict=True)
    samples = [sample for turn in turns for sample in turn]
    parts = split_minibatches(samples, minibatch_samples=10, seed=7, step=1)
    assert [len(part) for part in parts] == [10, 10, 10]
    assert all(len({sample.trajectory_id for sample in part}) == 2 for part in parts)


def test_few_short_trajectories_beside_a_long_one_make_no_step_of_their_own() -> None:
    samples = [*make_turns("long", 100), *(turn for number in range(10) for turn in make_turns(f"short_{number}", 1))]
    parts = split_minibatches(samples, minibatch_samples=16, seed=7, step=1)
    assert min(map(len, parts)) >= 8
    assert sum(map(len, parts)) == 110
