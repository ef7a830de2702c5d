"""The reference system's faults in the model's sums: padding that trains, and packed steps that share one advantage.

docs/agents/claw-r1.md has the table.
"""

from typing import Any

import pytest
import torch

from apps.core.contracts.training import LossSettings, TrainSample
from tests.worker.trainer.samples import even_weights, make_samples
from worker.trainer import batches
from worker.trainer.batches import build_micro_batch
from worker.trainer.losses import PolicyTokens, policy_loss
from worker.trainer.model import Policy


def gradients_of(policy: Policy, groups: list[list[TrainSample]]) -> dict[str, Any]:
    """Return the gradient of the loss over all samples, each group through the model at once."""
    policy.zero_grad()
    weights = even_weights([sample for group in groups for sample in group])
    for group in groups:
        micro = build_micro_batch(group, weights=weights)
        logprobs, entropies = policy(
            micro.prefix_ids, micro.input_ids, micro.predicts, micro.targets, micro.temperatures
        )
        tokens = PolicyTokens(
            logprobs=logprobs,
            behaviour=micro.behaviour_logprobs,
            proximal=micro.behaviour_logprobs,
            advantages=micro.advantages,
            weights=micro.weights,
            samples=micro.samples,
            entropies=entropies,
        )
        policy_loss(tokens, LossSettings()).loss.backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    scale = max(float(gradient.abs().max()) for gradient in one.values())
    assert scale > 0
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5 * scale


@pytest.mark.parametrize(
    "min_shared", [pytest.param(1, id="fault 13: a tree packed"), pytest.param(10_000, id="fault 8: padded")]
)
def test_gradients_are_those_of_the_unpacked_batch(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, min_shared: int
) -> None:
    """Steps behind one prefix, each with its own log-probs and an advantage of its own."""
    samples = make_samples(6, seed=5)
    assert len({sample.advantage for sample in samples}) > 1
    alone = gradients_of(policy, [[sample] for sample in samples])
    monkeypatch.setattr(batches, "MIN_SHARED_TOKENS", min_shared)
    assert_equal(alone, gradients_of(policy, [samples]))


def test_fault_08_padding_has_no_part_in_the_loss(policy: Policy) -> None:
    short, long = sorted(make_samples(2, seed=5, shared=()), key=lambda sample: len(sample.prompt_ids))
    micro = build_micro_batch([short, long], weights=even_weights([short, long]))
    n_tokens = len(short.completion_ids) + len(long.completion_ids)
    assert int(micro.predicts.sum()) == n_tokens == len(micro.targets)
    assert torch.equal(micro.targets, torch.tensor([*short.completion_ids, *long.completion_ids]))
