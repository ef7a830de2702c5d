"""The reference system's faults in the model's sums: padding that trains, and packed steps that share one advantage.

docs/agents/claw-r1.md has the table.
"""

from typing import Any

from apps.core.contracts.training import LossSettings, TrainSample
from tests.worker.trainer.samples import even_weights, make_samples
from worker.trainer.losses import PolicyTokens, policy_loss
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import Policy


def gradients_of(policy: Policy, groups: list[list[TrainSample]]) -> dict[str, Any]:
    """Return the gradient of the loss over all samples, each group through the model at once."""
    policy.zero_grad()
    weights = even_weights([sample for group in groups for sample in group])
    for group in groups:
        micro = build_micro_batch(group, weights=weights)
        logprobs, entropies = policy(trie=micro.trie, targets=micro.targets)
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


def test_fault_13_gradients_of_a_tree_are_those_of_the_unpacked_batch(policy: Policy) -> None:
    """Steps behind one prefix, each with its own log-probs and an advantage of its own."""
    samples = make_samples(6, seed=5)
    assert len({sample.advantage for sample in samples}) > 1
    alone = gradients_of(policy, [[sample] for sample in samples])
    assert_equal(alone, gradients_of(policy, [samples]))


def test_fault_08_there_is_no_padding_that_could_train(policy: Policy) -> None:
    short, long = sorted(make_samples(2, seed=5, shared=()), key=lambda sample: len(sample.prompt_ids))
    micro = build_micro_batch([short, long], weights=even_weights([short, long]))
    assert len(micro.trie.token_ids) == sum(len(s.prompt_ids) + len(s.completion_ids) - 1 for s in (short, long))
    assert micro.targets.token_ids.tolist() == [*short.completion_ids, *long.completion_ids]
    alone = gradients_of(policy, [[short], [long]])
    assert_equal(alone, gradients_of(policy, [[short, long]]))
