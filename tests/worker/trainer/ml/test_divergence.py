"""The distance to the base model as a cost: worked by hand, paid before advantages are normalised."""

from pathlib import Path

import pytest
import torch

from apps.core.contracts.training import LossSettings, TrainSample
from tests.worker.trainer.ml.engines import PlainEngine
from tests.worker.trainer.samples import make_batch, make_job, make_sample, make_samples
from worker.trainer.divergence import charge_tokens, charge_turns, read_reference
from worker.trainer.micro_batches import build_micro_batch
from worker.trainer.model import Policy
from worker.trainer.ranks import Ranks
from worker.trainer.steps import look_over, prepare_minibatch, train_step

COST = LossSettings(kl="k1_reward", kl_coefficient=0.1)
TURNS = [
    make_sample(reward=0.0),  # log-probs of mu -1, -2
    make_sample(step_id="step_2", completion_ids=(7,), logprobs=(-3.0,), reward=1.0),
]
SAID = {"step_1": torch.tensor([-1.5, -4.0]), "step_2": torch.tensor([-4.0])}  # so they are 0.5, 2 and 1 nats away


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


@pytest.mark.parametrize(("discount", "behind"), [(1.0, 1.0), (0.5, 0.5)])
def test_a_token_pays_for_itself_and_all_that_follows_in_its_trajectory(discount: float, behind: float) -> None:
    loss = LossSettings(kl="k1_reward", kl_coefficient=0.1, turn_discount=discount)
    charged = charge_tokens(TURNS, SAID, loss=loss)
    assert charged["step_1"].tolist() == pytest.approx([0.5 - 0.1 * (2.5 + behind), 0.5 - 0.1 * (2.0 + behind)])
    assert charged["step_2"].tolist() == pytest.approx([0.5 - 0.1 * 1.0])


def test_another_trajectory_pays_nothing_for_it() -> None:
    alone = [TURNS[0], make_sample(step_id="step_2", trajectory_id="traj_2", completion_ids=(7,), logprobs=(-3.0,))]
    assert charge_tokens(alone, SAID, loss=COST)["step_1"].tolist() == pytest.approx([0.25, 0.3])


def test_the_cost_is_paid_before_advantages_are_whitened() -> None:
    """REINFORCE++: A = 0.5 - 0.5 (1 + 0), 0.5 - 0.5 * 0 and -0.5, with mean 0 and variance (0 + 1/4 + 1/4) / 3.

    Whitened first, the three would be 0.707 - 0.5, 0.707 and -1.414.
    """
    samples = [
        make_sample(advantage=0.5),
        make_sample(step_id="step_2", trajectory_id="traj_2", completion_ids=(7,), logprobs=(-3.0,), advantage=-0.5),
    ]
    said = {"step_1": torch.tensor([-2.0, -2.0]), "step_2": torch.tensor([-3.0])}
    loss = LossSettings(kl="k1_reward", kl_coefficient=0.5, whitens=True)
    charged = charge_tokens(samples, said, loss=loss)
    assert charged["step_1"].tolist() == pytest.approx([0.0, 0.5 * 6**0.5])
    assert charged["step_2"].tolist() == pytest.approx([-0.5 * 6**0.5])


def test_a_critic_judges_what_is_left_of_a_turns_reward() -> None:
    unknown = make_sample(step_id="step_2", completion_ids=(7,), logprobs=(-3.0,))
    assert [turn.reward for turn in charge_turns(TURNS, SAID, loss=COST)] == pytest.approx([-0.25, 0.9])
    assert charge_turns([unknown], SAID, loss=COST)[0].reward is None  # missing is not zero


def base_of(policy: Policy, sample: TrainSample) -> torch.Tensor:
    """What the base model says of one sample alone."""
    micro = build_micro_batch([sample], weights={sample.step_id: 1.0})
    with torch.no_grad(), policy.without_adapter():
        logprobs, _ = policy(trie=micro.trie, targets=micro.targets)
    return logprobs


def test_the_base_model_is_read_for_each_sample_however_they_are_cut(
    policy: Policy, model_dir: Path, ranks: Ranks
) -> None:
    samples = make_samples(6, seed=0)
    job = make_job(model_dir, loss=COST, max_tokens_per_microbatch=64)
    said = read_reference(PlainEngine(policy), samples, job=job, ranks=ranks)
    assert list(said) == [sample.step_id for sample in samples]
    for sample in samples:
        assert torch.allclose(said[sample.step_id], base_of(policy, sample), atol=1e-5)


class Half(Ranks):
    """One of two ranks that know each other's part."""

    def __init__(self, run_dir: Path, *, index: int, parts: list[torch.Tensor]) -> None:
        super().__init__(run_dir, device="cpu")
        self.index, self.count, self._parts = index, 2, parts

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        """Take the other's part in, once it is there."""
        self._parts.append(tensor.clone())
        return tensor.copy_(sum(self._parts, torch.zeros_like(tensor)))


def test_two_ranks_read_it_together(policy: Policy, model_dir: Path, tmp_path: Path, ranks: Ranks) -> None:
    samples, engine = make_samples(6, seed=0), PlainEngine(policy)
    job = make_job(model_dir, loss=COST, max_tokens_per_microbatch=64)
    alone = read_reference(engine, samples, job=job, ranks=ranks)
    parts: list[torch.Tensor] = []
    for index in range(2):
        together = read_reference(engine, samples, job=job, ranks=Half(tmp_path, index=index, parts=parts))
    assert all(0 < int((part != 0).sum()) < sum(map(len, alone.values())) for part in parts)
    for step_id, said in alone.items():
        assert torch.allclose(together[step_id], said, atol=1e-5)


def test_a_step_uses_what_was_charged_and_shows_the_distance(policy: Policy, model_dir: Path, ranks: Ranks) -> None:
    samples, engine = make_samples(6, seed=0), PlainEngine(policy)
    job = make_job(model_dir, loss=COST, max_tokens_per_microbatch=64)
    foresight = look_over(engine, samples, job=job, ranks=ranks)
    expected = charge_tokens(samples, read_reference(engine, samples, job=job, ranks=ranks), loss=COST)
    parts = prepare_minibatch(engine, samples, job=job, ranks=ranks, foresight=foresight)
    assert len(parts) > 1
    found = sorted(torch.cat([part.advantages for part in parts]).tolist())
    assert found == pytest.approx(sorted(torch.cat(list(expected.values())).tolist()))
    metrics = train_step(engine, make_batch(1, samples=tuple(samples)), job=job, ranks=ranks)
    assert metrics["reference_kl"] > 0
