"""The critic: advantages and its loss worked by hand, and what five successes teach."""

import dataclasses
from pathlib import Path

import pytest
import torch

from apps.core.contracts.training import CriticSettings, LossSettings, OptimizerSettings, TrainJob, TrainSample
from tests.worker.trainer.ml.engines import PlainEngine
from tests.worker.trainer.samples import PROBE, make_batch, make_job, make_samples
from worker.trainer.batches import check_batch
from worker.trainer.critic import (
    ActorCritic,
    Turns,
    assess_turns,
    estimate_advantages,
    load_actor,
    value_loss,
)
from worker.trainer.ranks import Ranks
from worker.trainer.steps import train_step

CRITIC = CriticSettings(gae_lambda=0.95, turn_discount=1.0, value_coefficient=0.5, value_clip=0.2)


def critic_of(**changes: float) -> CriticSettings:
    return dataclasses.replace(CRITIC, **changes)


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path, device="cpu")


@pytest.fixture
def job(model_dir: Path) -> TrainJob:
    optimizer = OptimizerSettings(learning_rate=1e-2, max_grad_norm=1e9, minibatch_samples=100)
    return make_job(model_dir, optimizer=optimizer, critic=CRITIC, loss=LossSettings())


@pytest.fixture
def actor(job: TrainJob) -> ActorCritic:
    actor = load_actor(job)
    assert isinstance(actor, ActorCritic)
    return actor


def two_turns(n: int, *, reward: float) -> list[TrainSample]:
    """Trajectories of two turns; what comes, comes at the end."""
    return [
        dataclasses.replace(sample, trajectory_id=f"t{place // 2}", reward=reward if place % 2 else 0.0, advantage=0.0)
        for place, sample in enumerate(make_samples(2 * n, seed=1))
    ]


@pytest.mark.parametrize(
    ("settings", "values", "advantages"),
    [
        ({}, [0.0, 0.0], [0.95, 1.0]),
        ({"gae_lambda": 1.0}, [0.3, 0.6], [0.7, 0.4]),  # what came, minus what was expected
        ({"gae_lambda": 0.0}, [0.3, 0.6], [0.3, 0.4]),  # one turn's surprise alone
        ({"gae_lambda": 0.5, "turn_discount": 0.5}, [0.2, 0.4], [0.0 + 0.25 * 0.6, 0.6]),
    ],
)
def test_advantages_worked_by_hand(settings: dict[str, float], values: list[float], advantages: list[float]) -> None:
    """Two turns, of which the second is rewarded with 1."""
    assert estimate_advantages([0.0, 1.0], values, critic=critic_of(**settings)) == pytest.approx(advantages)


def test_fault_07_no_turn_of_five_successes_is_pushed_down() -> None:
    """The reference system's first turns get about -0.95 and its last ones +0.95."""
    ignorant = [estimate_advantages([0.0, 1.0], [0.0, 0.0], critic=CRITIC) for _ in range(5)]
    assert all(advantage > 0 for advantages in ignorant for advantage in advantages)
    knowing = [estimate_advantages([0.0, 1.0], [1.0, 1.0], critic=CRITIC) for _ in range(5)]
    assert all(advantage == 0 for advantages in knowing for advantage in advantages)
    failed = estimate_advantages([0.0, 0.0], [0.8, 0.8], critic=CRITIC)
    assert all(advantage < 0 for advantage in failed)


def test_a_value_moves_no_further_than_the_clip_pays() -> None:
    turns = Turns(
        n_all=3, firsts=torch.arange(3), values=torch.tensor([0.0, 0.0, 0.0]), actuals=torch.tensor([1.0, 1.0, 1.0])
    )
    losses = value_loss(torch.tensor([0.1, 0.5, -0.5]), turns, clip=0.2)
    assert losses.tolist() == pytest.approx([0.81 / 2, 0.64 / 2, 2.25 / 2])


def test_nothing_is_expected_at_first_and_values_are_read_where_answers_begin(
    actor: ActorCritic, job: TrainJob, ranks: Ranks
) -> None:
    samples = two_turns(2, reward=1.0)
    assessed, expected = assess_turns(PlainEngine(actor), samples, critic=CRITIC, job=job, ranks=ranks)
    assert [sample.advantage for sample in assessed] == pytest.approx([0.95, 1.0, 0.95, 1.0])
    assert {each.value for each in expected.values()} == {0.0}
    with torch.no_grad():
        actor.value_head.weight.normal_()
    base = actor.model.get_base_model()
    _, again = assess_turns(PlainEngine(actor), samples, critic=CRITIC, job=job, ranks=ranks)
    with torch.no_grad():
        for sample in samples:
            hidden = base.model(input_ids=torch.tensor([sample.prompt_ids]), trie=None).last_hidden_state[0, -1]
            assert again[sample.step_id].value == pytest.approx(float(actor.value_head(hidden)), abs=1e-5)


def test_actor_and_critic_learn_together(actor: ActorCritic, job: TrainJob, ranks: Ranks) -> None:
    engine = PlainEngine(actor)
    batch = make_batch(1, samples=tuple(two_turns(3, reward=1.0)))
    metrics = train_step(engine, batch, job=job, ranks=ranks)
    gradients = engine.gradients()
    assert metrics["value_loss"] == pytest.approx((0.95**2 + 1) / 4)  # (0 - 0.95)^2 / 2 and (0 - 1)^2 / 2
    assert float(gradients["value_head.bias"]) == pytest.approx(-0.5 * (0.95 + 1) / 2)
    assert any("lora_" in name and gradient.abs().max() > 0 for name, gradient in gradients.items())


def test_a_batch_for_a_critic_needs_no_advantages() -> None:
    batch = make_batch(1, samples=tuple(two_turns(1, reward=0.0)), probe=PROBE)
    check_batch(batch, step=1, vocab_size=512, max_length=256)
