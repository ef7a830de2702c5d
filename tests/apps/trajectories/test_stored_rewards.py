"""Rewards as the pool stores them: of a trajectory and its steps together, or not at all."""

from collections.abc import Callable
from typing import Any

import pytest

from apps.accounts.models import Agent
from apps.trajectories.models import Trajectory
from apps.trajectories.services import set_reward, set_rewards
from tests.factories.trajectories import StepFactory, TrajectoryFactory


def store_one(trajectory: Trajectory, step_rewards: Any) -> None:
    set_reward(trajectory, 0.5, step_rewards=step_rewards)


def store_many(trajectory: Trajectory, step_rewards: Any) -> None:
    set_rewards({trajectory.pk: 0.5}, step_rewards=step_rewards)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("store", [store_one, store_many])
def test_a_trajectory_and_its_steps_are_rewarded_together(
    agent: Agent, store: Callable[[Trajectory, Any], None]
) -> None:
    trajectory = TrajectoryFactory.create(agent=agent)
    step = StepFactory.create(trajectory=trajectory, index=7)
    with pytest.raises(ValueError, match="much"):
        store(trajectory, {step.pk: "much"})
    assert Trajectory.objects.get(pk=trajectory.pk).reward is None
    store(Trajectory.objects.get(pk=trajectory.pk), {step.pk: 0.25})
    step.refresh_from_db()
    assert (Trajectory.objects.get(pk=trajectory.pk).reward, step.reward) == (0.5, 0.25)
