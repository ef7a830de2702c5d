"""Batches: what is refused, how samples are dealt out, and what the padded tensors hold."""

import math
from typing import Any

import pytest

from apps.core.contracts.training import Probe
from tests.worker.trainer.samples import SHARED_PROMPT, even_weights, make_batch, make_sample, make_samples
from worker.trainer.batches import (
    build_filler,
    build_micro_batch,
    check_batch,
    count_computed,
    count_shared,
    plan_micro_batches,
    split_minibatches,
)
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


def test_every_rank_gets_as_many_groups_and_no_sample_is_lost() -> None:
    samples = make_samples(11, seed=0, shared=())
    plans = plan_micro_batches(samples, max_tokens=60, n_ranks=3)
    assert len({len(plan) for plan in plans}) == 1
    dealt = [sample.step_id for plan in plans for group in plan for sample in group]
    assert sorted(dealt) == sorted(sample.step_id for sample in samples)
    assert all(len(group) == 1 or count_computed(group) <= 60 for plan in plans for group in plan if group)


def test_fewer_samples_than_ranks_leave_empty_groups() -> None:
    plans = plan_micro_batches(make_samples(1, seed=0), max_tokens=64, n_ranks=2)
    assert [len(group) for plan in plans for group in plan] == [1, 0]


def test_a_sample_above_the_budget_goes_alone() -> None:
    long, short = make_sample(prompt_ids=tuple(range(100))), make_sample()
    ((first, second),) = plan_micro_batches([long, short], max_tokens=20, n_ranks=1)
    assert (first, second) == ([short], [long])


def test_sorting_by_length_keeps_padding_small() -> None:
    samples = make_samples(40, seed=0, shared=())
    (plan,) = plan_micro_batches(samples, max_tokens=128, n_ranks=1)
    computed = sum(count_computed(group) for group in plan)
    real = sum(len(sample.prompt_ids) + len(sample.completion_ids) for sample in samples)
    assert computed < 1.25 * real


def test_the_shared_prefix_is_counted_once_and_leaves_the_predicting_token() -> None:
    samples = make_samples(4, seed=0)
    assert count_shared(samples) == len(SHARED_PROMPT)
    twins = [make_sample(prompt_ids=SHARED_PROMPT), make_sample(prompt_ids=SHARED_PROMPT)]
    assert count_shared(twins) == len(SHARED_PROMPT) - 1
    assert count_computed(twins) == (len(SHARED_PROMPT) - 1) + 2 * 3


def test_the_padded_tensors_hold_each_token_in_its_place() -> None:
    one = make_sample(prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(-1.0, -2.0))
    two = make_sample(
        step_id="step_2", prompt_ids=(6,), completion_ids=(7,), logprobs=(-3.0,), advantage=-1.0, temperature=0.5
    )
    micro = build_micro_batch([one, two], weights={"step_1": 0.25, "step_2": 0.5})
    assert micro.prefix_ids.shape == (1, 0)
    assert micro.input_ids.tolist() == [[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]]
    assert micro.predicts.int().tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 0]]
    assert micro.targets.tolist() == [4, 5, 7]
    assert micro.behaviour_logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert micro.advantages.tolist() == [0.5, 0.5, -1.0]
    assert micro.temperatures.tolist() == [1.0, 1.0, 0.5]
    assert micro.weights.tolist() == [0.25, 0.25, 0.5]
    assert micro.samples.tolist() == [0, 0, 1]


def test_after_a_shared_prefix_come_only_the_rest() -> None:
    twins = [make_sample(prompt_ids=(*SHARED_PROMPT, last)) for last in (1, 2)]
    micro = build_micro_batch(twins, weights=even_weights(twins))
    assert micro.prefix_ids.tolist() == [list(SHARED_PROMPT)]
    assert micro.input_ids.tolist() == [[1, 4, 5], [2, 4, 5]]
    assert micro.predicts.int().tolist() == [[1, 1, 0], [1, 1, 0]]


def test_a_filler_predicts_nothing() -> None:
    filler = build_filler()
    assert not filler.predicts.any()
    assert len(filler.targets) == 0
