"""What is known of a minibatch before its first update, and how far a step may go. Whole runs: test_real_trainer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from apps.core.contracts.training import LossSettings
from tests.worker.trainer.ml.policy_tokens import compute
from tests.worker.trainer.samples import make_job, make_samples
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks
from worker.trainer.steps import Foresight, Part, prepare_minibatch, step_scale


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


class Engine:
    """DeepSpeed's engine as far as looking ahead needs it."""

    def __init__(self, policy: Policy) -> None:
        self.module = policy

    def __call__(self, **question: Any) -> Any:
        return self.module(**question)


def prepare(policy: Policy, model_dir: Path, ranks: Ranks, loss: LossSettings) -> Part:
    """The one micro-batch of a few samples."""
    job = make_job(model_dir, loss=loss, max_tokens_per_microbatch=10_000)
    foresight = Foresight(samples=make_samples(3, seed=0))
    (part,) = prepare_minibatch(Engine(policy), foresight.samples, job=job, ranks=ranks, foresight=foresight)
    return part


def test_without_a_correction_nothing_is_computed_ahead(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    part = prepare(policy, model_dir, ranks, LossSettings())
    assert torch.equal(part.proximal, part.micro.behaviour_logprobs)
    assert part.reference is None


def test_what_a_recipe_compares_with_is_computed_ahead(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    part = prepare(policy, model_dir, ranks, LossSettings(correction="tis", kl="k2_loss", kl_coefficient=0.1))
    micro = part.micro
    with torch.no_grad():
        now, _ = policy(trie=micro.trie, targets=micro.targets)
        with policy.model.disable_adapter():
            base, _ = policy(trie=micro.trie, targets=micro.targets)
    assert part.reference is not None
    assert torch.equal(part.proximal, now)
    assert torch.equal(part.reference, base)
    assert not torch.equal(now, base)
    assert not part.proximal.requires_grad
    assert torch.equal(part.advantages, micro.advantages)


def test_a_step_that_few_samples_carry_is_shortened() -> None:
    sums = compute([1.0, 3.0], [1.0, 1.0], loss=LossSettings()).sums  # effective size: 16 of 2 * 10
    scales = [step_scale(sums, min_ess=min_ess) for min_ess in (0.0, 0.5, 1.0)]
    assert scales == pytest.approx([1, 1, 0.8])
