"""The reference system's faults in what is trained on, with its own examples; docs/agents/claw-r1.md has the table."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from apps.core.contracts.arrays import pack_logprobs
from apps.core.contracts.training import TrainBatch
from apps.core.errors import InvalidInput
from apps.feedback.scoring import score_trajectory
from apps.registry.models import Version
from apps.training import leases
from apps.training.models import RunEvent
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from apps.trajectories.services import close_idle_trajectories, set_exclusion
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim
from tests.factories.trajectories import StepFactory

pytestmark = pytest.mark.django_db

TWO_TURNS: list[dict[str, Any]] = [
    {"prompt_ids": [1, 2, 3], "completion_ids": [4, 5]},
    {"prompt_ids": [1, 2, 3, 4, 5, 6], "completion_ids": [7]},
]
OPEN = {"state": TrajectoryState.OPEN, "completed_at": None, "reward": None}


def lease(launch: LaunchRun, **recipe: Any) -> TrainBatch | None:
    return leases.lease_batch(claim(launch(**recipe)), step=1)


def group_recipe(size: int, *, groups: int = 1) -> dict[str, Any]:
    return {"estimator": "rloo", "group_size": size, "trajectories_per_step": size * groups}


def taken(batch: TrainBatch | None) -> set[str]:
    assert batch is not None
    return {sample.trajectory_id for sample in batch.samples}


def submit(client: APIClient, trajectory: Trajectory, **fields: Any) -> Any:
    step = {"prompt_ids": [1, 2], "response_ids": [3], "log_probs": [-0.5], "version": "v0", **fields}
    return client.post(f"/api/v1/trajectories/{trajectory.id}/steps", {"steps": [step]})


class TestFault02:
    """One unfinished trajectory at the head of the line blocks all ready groups for ever."""

    def test_any_ready_group_is_served(self, launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
        add_trajectory(group="head", **OPEN)
        add_trajectory(group="head", reward=1.0)
        ready = {add_trajectory(group="behind", reward=reward).id for reward in (1.0, 0.0)}
        assert taken(lease(launch, **group_recipe(2))) == ready

    def test_what_never_ends_is_closed_by_time(self, add_trajectory: AddTrajectory) -> None:
        stuck = add_trajectory(**OPEN, last_step_at=timezone.now() - timedelta(hours=1))
        assert close_idle_trajectories(idle_s=60) == 1
        stuck.refresh_from_db()
        assert stuck.state == TrajectoryState.COMPLETE

    def test_a_late_step_is_refused_and_makes_no_new_group(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, key_client: APIClient
    ) -> None:
        rows = [add_trajectory(group="g", reward=reward) for reward in (1.0, 0.0)]
        assert taken(lease(launch, **group_recipe(2))) == {row.id for row in rows}
        late = submit(key_client, rows[0])
        assert (late.status_code, late.json()["code"]) == (409, "conflict")
        assert Trajectory.objects.count() == 2


class TestFault03:
    """Unfinished trajectories of a ready group are trained, duplicates are trained twice, dropped groups stay."""

    def test_only_finished_trajectories_are_trained(self, launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
        unfinished = add_trajectory(group="g", **OPEN)
        done = {add_trajectory(group="g", reward=reward).id for reward in (1.0, 0.0)}
        assert unfinished.id not in taken(lease(launch, **group_recipe(2)))
        assert len(done) == 2

    def test_a_step_submitted_twice_is_trained_once(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, key_client: APIClient
    ) -> None:
        rows = [add_trajectory(steps=(), **OPEN) for _ in range(2)]
        for row, reward in zip(rows, (1, 0), strict=True):
            for _ in range(2):
                submit(key_client, row, client_step_id="turn-0", reward=reward)
            key_client.post(f"/api/v1/trajectories/{row.id}/complete")
        batch = lease(launch)
        assert batch is not None
        assert len(batch.samples) == 2

    def test_what_is_passed_over_is_said_and_not_looked_at_again(
        self, launch: LaunchRun, add_trajectory: AddTrajectory
    ) -> None:
        for reward in (1.0, 0.0):
            add_trajectory(reward=reward)
        attempt = claim(launch())
        Trajectory.objects.update(reward=1.0)  # somebody has looked again
        assert leases.lease_batch(attempt, step=1) is None
        assert RunEvent.objects.filter(run_id=attempt.run_id, kind="batch.skipped").count() == 1
        assert leases.describe_wait(attempt).startswith("0 of 2 ready; 2 trained on before")


class TestFault04:
    """`trainable=false` steps are served all the same: what people say never reaches the trainer."""

    def test_keeping_a_trajectory_out_changes_the_next_batch(
        self, launch: LaunchRun, add_trajectory: AddTrajectory
    ) -> None:
        bad, *good = [add_trajectory(reward=reward) for reward in (1.0, 0.0, 1.0)]
        set_exclusion(trajectory=bad, is_excluded=True, actor="owner@example.org")
        assert taken(lease(launch)) == {row.id for row in good}

    def test_a_step_that_is_kept_out_has_no_gradient(self, launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
        row = add_trajectory(reward=1.0, steps=TWO_TURNS)
        add_trajectory(reward=0.0)
        kept_out = Step.objects.get(trajectory=row, index=1)
        Step.objects.filter(pk=kept_out.pk).update(is_excluded=True)
        batch = lease(launch)
        assert batch is not None
        assert kept_out.id not in {sample.step_id for sample in batch.samples}
        assert len(batch.samples) == 2


class TestFault05:
    """If one step of a batch has a reward, all missing ones become 0."""

    def test_a_trajectory_without_a_reward_waits(self, launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
        add_trajectory(reward=None)
        rewarded = {add_trajectory(reward=reward).id for reward in (1.0, 0.0)}
        assert taken(lease(launch)) == rewarded

    def test_steps_without_a_reward_do_not_count_as_zero(
        self, add_trajectory: AddTrajectory, key_client: APIClient
    ) -> None:
        row = add_trajectory(steps=(), **OPEN)
        submit(key_client, row, client_step_id="a")
        assert submit(key_client, row, client_step_id="b", reward=1).json()["reward"] == 1  # not the mean with 0
        assert score_trajectory([]).reward is None


class TestFault07:
    """Each turn is a sample of its own: of five two-turn successes, first turns get -0.95 and last turns +0.95."""

    @pytest.mark.parametrize("recipe", [group_recipe(5), {"trajectories_per_step": 5}], ids=["group", "ema"])
    def test_five_successes_teach_nothing_on_any_turn(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, recipe: dict[str, Any]
    ) -> None:
        rows = [add_trajectory(group="g", reward=reward, steps=TWO_TURNS) for reward in (1.0, 1.0, 1.0, 1.0, 0.0)]
        attempt = claim(launch(**recipe))
        Trajectory.objects.filter(pk=rows[4].pk).update(reward=1.0)
        assert leases.lease_batch(attempt, step=1) is None  # every advantage is exactly 0

    def test_a_run_on_successes_alone_is_refused_at_once(
        self, launch: LaunchRun, add_trajectory: AddTrajectory
    ) -> None:
        for _ in range(5):
            add_trajectory(group="g", reward=1.0, steps=TWO_TURNS)
        with pytest.raises(InvalidInput, match="every advantage would be zero"):
            launch(**group_recipe(5))

    @pytest.mark.parametrize(
        ("recipe", "good", "bad"), [(group_recipe(5), 0.25, -1.0), ({"trajectories_per_step": 5}, 0.2, -0.8)]
    )
    def test_one_failure_has_the_right_sign_on_every_turn(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, recipe: dict[str, Any], good: float, bad: float
    ) -> None:
        rows = [add_trajectory(group="g", reward=reward, steps=TWO_TURNS) for reward in (1.0, 1.0, 1.0, 1.0, 0.0)]
        batch = lease(launch, **recipe)
        assert batch is not None
        assert len(batch.samples) == 10
        for sample in batch.samples:
            assert sample.advantage == pytest.approx(bad if sample.trajectory_id == rows[4].id else good)

    @pytest.mark.parametrize("discount", [1.0, 0.5])
    @pytest.mark.parametrize("recipe", [group_recipe(5), {"trajectories_per_step": 5}], ids=["group", "ema"])
    def test_by_step_too_five_successes_teach_nothing(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, recipe: dict[str, Any], discount: float
    ) -> None:
        """Discounted, a first turn's return is half a last turn's, and neither is better or worse than another's."""
        for _ in range(5):
            add_trajectory(group="g", reward=1.0, steps=TWO_TURNS)
        attempt = claim(launch(**recipe, credit="step", turn_discount=discount))
        assert leases.lease_batch(attempt, step=1) is None

    @pytest.mark.parametrize("discount", [1.0, 0.5])
    def test_by_step_too_one_failure_has_the_right_sign_on_every_turn(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, discount: float
    ) -> None:
        rows = [add_trajectory(group="g", reward=reward, steps=TWO_TURNS) for reward in (1.0, 1.0, 1.0, 1.0, 0.0)]
        batch = lease(launch, **group_recipe(5), credit="step", turn_discount=discount)
        assert batch is not None
        assert len(batch.samples) == 10
        for sample in batch.samples:
            is_last = len(sample.prompt_ids) == 6
            expected = -1.0 if sample.trajectory_id == rows[4].id else 0.25
            assert sample.advantage == pytest.approx(expected * (1.0 if is_last else discount))


class TestFault08:
    """Batches are filled up with copies, and the copies train."""

    def test_a_batch_holds_each_step_once_and_nothing_else(
        self, launch: LaunchRun, add_trajectory: AddTrajectory
    ) -> None:
        rows = [add_trajectory(reward=reward, steps=TWO_TURNS[:n]) for reward, n in ((1.0, 1), (0.0, 2), (1.0, 2))]
        batch = lease(launch, trajectories_per_step=3)
        assert batch is not None
        steps = [step.id for row in rows for step in row.steps.all()]
        assert sorted(sample.step_id for sample in batch.samples) == sorted(steps)


class TestFault13:
    """A packed tree has one row of advantages and log-probs that are not each step's own."""

    def test_steps_out_of_the_trie_have_their_own_tokens_log_probs_and_advantage(
        self, launch: LaunchRun, add_trajectory: AddTrajectory, base: Version
    ) -> None:
        row = add_trajectory(reward=1.0, steps=({"prompt_ids": [1, 2, 3], "completion_ids": [4, 5]},))
        root = row.steps.get()
        for index, ids in enumerate(([6], [7, 8]), start=1):  # two branches behind the same turn
            StepFactory.create(
                trajectory=row,
                index=index,
                version=base,
                parent=root,
                shared_tokens=5,
                prompt_ids=[9],
                n_prompt_tokens=6,
                completion_ids=ids,
                logprobs=pack_logprobs([-float(index)] * len(ids)),
            )
        add_trajectory(reward=0.0)
        batch = lease(launch)
        assert batch is not None
        told = {sample.prompt_ids: sample for sample in batch.samples if sample.trajectory_id == row.id}
        branches = [sample for sample in batch.samples if len(sample.prompt_ids) == 6]
        assert set(told) == {(1, 2, 3), (1, 2, 3, 4, 5, 9)}
        assert sorted((sample.completion_ids, sample.logprobs) for sample in branches) == [
            ((6,), (-1.0,)),
            ((7, 8), (-2.0, -2.0)),
        ]
        assert {sample.advantage for sample in batch.samples if sample.trajectory_id == row.id} == {0.5}
