"""Micro-batches: what is computed, within which bounds, by whom, and what the loss is told of each token."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from apps.core.contracts.training import TrainSample
from tests.worker.trainer.samples import SHARED_PROMPT, even_weights, make_sample, make_samples
from worker.trainer.micro_batches import build_filler, build_micro_batch, plan_micro_batches
from worker.trainer.tries import find_segments


def count_nodes(samples: Sequence[TrainSample]) -> int:
    return len(build_micro_batch(samples, weights=even_weights(samples)).trie.token_ids)


def make_conversation(name: str, *, n_turns: int, n_tokens: int = 20) -> list[TrainSample]:
    """A trajectory whose every prompt is all that came before; `n_tokens` a turn."""
    first = 1000 * (1 + sum(map(ord, name)))
    tokens = tuple(range(first, first + n_turns * n_tokens))
    return [
        make_sample(
            step_id=f"{name}_{turn}",
            trajectory_id=name,
            prompt_ids=tokens[: turn * n_tokens - 5],
            completion_ids=tokens[turn * n_tokens - 5 : turn * n_tokens],
            logprobs=(-1.0,) * 5,
        )
        for turn in range(1, n_turns + 1)
    ]


def test_each_token_stands_at_its_node_and_each_target_at_the_node_before() -> None:
    one = make_sample(prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(-1.0, -2.0))
    two = make_sample(
        step_id="step_2", prompt_ids=(6,), completion_ids=(7,), logprobs=(-3.0,), advantage=-1.0, temperature=0.5
    )
    micro = build_micro_batch([one, two], weights={"step_1": 0.25, "step_2": 0.5})
    assert micro.trie.token_ids.tolist() == [1, 2, 3, 4, 6]
    assert micro.trie.depths.tolist() == [0, 1, 2, 3, 0]
    assert micro.targets.nodes[micro.targets.rows].tolist() == [2, 3, 4]
    assert micro.targets.temperatures[micro.targets.rows].tolist() == [1.0, 1.0, 0.5]
    assert micro.targets.token_ids.tolist() == [4, 5, 7]
    assert micro.behaviour_logprobs.tolist() == [-1.0, -2.0, -3.0]
    assert micro.advantages.tolist() == [0.5, 0.5, -1.0]
    assert micro.weights.tolist() == [0.25, 0.25, 0.5]
    assert micro.samples.tolist() == [0, 0, 1]


def test_answers_to_one_prompt_come_from_one_node() -> None:
    twins = [
        make_sample(step_id=f"step_{first}", prompt_ids=SHARED_PROMPT, completion_ids=(first, 3)) for first in (1, 2)
    ]
    targets = build_micro_batch(twins, weights=even_weights(twins)).targets
    assert targets.rows.tolist() == [0, 1, 0, 2]
    assert targets.nodes.tolist() == [len(SHARED_PROMPT) - 1, len(SHARED_PROMPT), len(SHARED_PROMPT) + 1]
    warm = [twins[0], replace(twins[1], temperature=0.5)]
    assert build_micro_batch(warm, weights=even_weights(warm)).targets.rows.tolist() == [0, 1, 2, 3]


def test_a_conversation_costs_its_length() -> None:
    turns = make_conversation("a", n_turns=10)
    micro = build_micro_batch(turns, weights=even_weights(turns))
    assert len(micro.trie.token_ids) == 10 * 20 - 1
    assert len(find_segments(micro.trie)) == 1
    assert len(micro.targets.token_ids) == 10 * 5


def test_a_filler_asks_for_nothing() -> None:
    filler = build_filler()
    assert len(filler.trie.token_ids) == 1
    assert len(filler.targets.token_ids) == len(filler.targets.nodes) == 0


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_every_rank_gets_as_many_groups_within_the_bound_and_no_sample_is_lost(n_ranks: int) -> None:
    samples = make_samples(11, seed=0, shared=())
    plans = plan_micro_batches(samples, max_tokens=60, n_ranks=n_ranks)
    assert len({len(plan) for plan in plans}) == 1
    dealt = [sample.step_id for plan in plans for group in plan for sample in group]
    assert sorted(dealt) == sorted(sample.step_id for sample in samples)
    assert all(count_nodes(group) <= 60 for plan in plans for group in plan if group)


def test_fewer_samples_than_ranks_leave_empty_groups() -> None:
    plans = plan_micro_batches(make_samples(1, seed=0), max_tokens=64, n_ranks=2)
    assert [len(group) for plan in plans for group in plan] == [1, 0]


def test_a_sample_above_the_budget_goes_alone() -> None:
    long, short = make_sample(prompt_ids=tuple(range(100))), make_sample()
    ((first, second),) = plan_micro_batches([short, long], max_tokens=20, n_ranks=1)
    assert (first, second) == ([long], [short])


def test_tries_are_cut_where_they_share_least() -> None:
    conversations = [make_conversation(name, n_turns=5) for name in "abc"]  # 99 nodes each
    samples = [turn for turns in zip(*conversations, strict=True) for turn in turns]
    (plan,) = plan_micro_batches(samples, max_tokens=150, n_ranks=1)  # a greedy cut would split the second
    assert [sorted({sample.trajectory_id for sample in group}) for group in plan] == [["a"], ["b"], ["c"]]


def test_a_trie_above_the_bound_is_cut_and_its_trunk_computed_twice() -> None:
    answers = [
        make_sample(step_id=f"step_{n}", prompt_ids=(*SHARED_PROMPT, n), completion_ids=tuple(range(100, 120)),
                    logprobs=(-1.0,) * 20)
        for n in range(6)
    ]  # fmt: skip
    (plan,) = plan_micro_batches(answers, max_tokens=100, n_ranks=1)
    assert [len(group) for group in plan] == [3, 3]
    assert [count_nodes(group) for group in plan] == [30 + 3 * 20] * 2


def test_ranks_share_the_work_only_where_that_is_sooner() -> None:
    apart = make_samples(8, seed=1, shared=())
    one, two = plan_micro_batches(apart, max_tokens=10_000, n_ranks=2)
    assert len(one) == len(two) == 1
    assert abs(count_nodes(one[0]) - count_nodes(two[0])) < 30
    turns = make_conversation("a", n_turns=4)  # the last turn needs all of it: a second rank could not help
    assert plan_micro_batches(turns, max_tokens=10_000, n_ranks=2) == [[turns], [[]]]
