"""What hindsight distillation takes: fresh answers of which somebody said what would have been better."""

import json
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.core.contracts.training import TrainBatch
from apps.core.errors import InvalidInput
from apps.feedback.models import Label
from apps.feedback.preferences.services import add_correction
from apps.registry.models import Version
from apps.training import leases
from apps.training.launching import preview_launch
from apps.training.models import Batch
from apps.training.recipes import read_recipe
from apps.training.selection import Selection
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim
from tests.factories.feedback import LabelFactory
from tests.factories.registry import VersionFactory

pytestmark = pytest.mark.django_db
HINDSIGHT: dict[str, Any] = {"algorithm": "hindsight", "trajectories_per_step": 1}
TWO: list[dict[str, Any]] = [{}, {"prompt_ids": [1, 2, 3, 4, 5, 6], "completion_ids": [7]}]


def hint(trajectory: Trajectory, text: str, *, index: int = 0, field: str = "hint") -> Label:
    step = trajectory.steps.get(index=index)
    return LabelFactory.create(trajectory=trajectory, step=step, value=None, text=text, field=field)


def lease(launch: LaunchRun, **recipe: Any) -> TrainBatch:
    batch = leases.lease_batch(claim(launch(**{**HINDSIGHT, **recipe})), step=1)
    assert batch is not None
    return batch


def test_a_step_with_a_hint_is_taken_without_any_reward(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(reward=None, steps=TWO)
    hint(row, "Name the city.")
    (sample,) = lease(launch).samples
    assert (sample.prompt_ids, sample.advantage) == ((1, 2, 3), 0.0)
    assert sample.hint is not None
    *before, told = json.loads(sample.hint.messages)
    assert before == [{"role": "user", "content": "hello"}]
    assert told["role"] == "user"
    assert told["content"].endswith("\n- Name the city.")
    assert Batch.objects.get().discards == {"no_signal": 1}  # the other step: no hint, no reward


def test_comments_and_corrections_are_hints_and_rewards_are_added(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    row = add_trajectory(reward=-0.5, steps=TWO)
    hint(row, "Too long.", field="comment")
    add_correction(caller=owner_caller, step=row.steps.get(index=0), message="In Oslo.")
    first, second = lease(launch, reward_weight=2.0).samples
    assert first.hint is not None
    assert "- Too long.\n- A better answer would be: In Oslo." in json.loads(first.hint.messages)[-1]["content"]
    assert second.hint is None
    assert [first.advantage, second.advantage] == [-1.0, -1.0]


def test_old_answers_and_answers_without_words_are_not_for_it(
    launch: LaunchRun, add_trajectory: AddTrajectory, base: Version
) -> None:
    add_trajectory(reward=1.0)
    old = add_trajectory(version=VersionFactory.create(policy=base.policy, number=7))
    hint(old, "Name the city.")
    found = preview_launch(project=old.project, selection=Selection(), recipe=read_recipe({"algorithm": "hindsight"}))
    assert found.counts == {"ready": 0, "unhinted": 1, "stale": 1}
    with pytest.raises(InvalidInput, match="1 without a hint, a comment or a correction"):
        launch(**HINDSIGHT)


def test_a_leased_batch_is_fed_again_with_the_same_hints(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    row = add_trajectory(reward=None)
    hint(row, "Name the city.")
    attempt = claim(launch(**HINDSIGHT))
    before = leases.lease_batch(attempt, step=1)
    hint(row, "And the time.")
    assert leases.lease_batch(attempt, step=1) == before


def test_it_is_launched_over_rest(manage_client: APIClient, add_trajectory: AddTrajectory) -> None:
    hint(add_trajectory(reward=None), "Name the city.")
    answer = manage_client.post("/api/v1/runs", {"recipe": HINDSIGHT})
    assert answer.status_code == 201, answer.json()
    assert answer.json()["recipe"]["hint_weight"] == 1.0
