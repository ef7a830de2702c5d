"""What a step takes from the pool, and what becomes of it."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.core.contracts.training import TrainBatch, TrainerEvent
from apps.core.errors import Conflict
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import Submission, submit_review, take_review
from apps.feedback.services import add_label
from apps.registry.models import Version, VersionState
from apps.registry.services import mark_failed, mark_ready
from apps.training import attempts, leases, services
from apps.training.fence import AttemptLost
from apps.training.models import Attempt, Batch, BatchState, BatchTrajectory, Metric, Run, RunEvent, RunState
from apps.trajectories.models import SideCall, Step, Trajectory
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim, finish_step

Ready = list[Trajectory]


@pytest.fixture
def attempt(launch: LaunchRun, two_ready: Ready) -> Attempt:
    """A claimed run with one batch ready."""
    return claim(launch())


def lease(attempt: Attempt, step: int = 1) -> TrainBatch:
    batch = leases.lease_batch(attempt, step=step)
    assert batch is not None
    return batch


def trajectories_of(batch: TrainBatch) -> list[str]:
    return [sample.trajectory_id for sample in batch.samples]


def reread(attempt: Attempt) -> Run:
    return Run.objects.get(pk=attempt.run_id)


def test_a_batch_holds_exact_samples_with_their_trajectorys_advantage(attempt: Attempt, two_ready: Ready) -> None:
    batch = lease(attempt)
    first, second = batch.samples
    assert first.trajectory_id == two_ready[0].id
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((1, 2, 3), (4, 5), (-0.5, -0.5))
    assert (first.advantage, second.advantage) == (0.5, -0.5)  # rewards 1 and 0 around their mean
    assert batch.probe.token_ids == (1, 2, 3, 4, 5)
    assert BatchTrajectory.objects.filter(is_active=True).count() == 2


def test_every_step_of_a_trajectory_gets_the_same_advantage(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    """Fault 7 of the reference: first turns were punished where all had succeeded."""
    for reward in (1.0, 1.0, 1.0, 1.0, 0.0):
        add_trajectory(reward=reward, steps=[{}, {"prompt_ids": [1, 2, 3, 4, 5, 6]}])
    batch = lease(claim(launch(trajectories_per_step=5)))
    assert [round(sample.advantage, 6) for sample in batch.samples] == [0.2] * 8 + [-0.8] * 2


def test_too_few_ready_trajectories_make_no_batch(launch: LaunchRun, two_ready: Ready) -> None:
    attempt = claim(launch(trajectories_per_step=3))
    assert leases.lease_batch(attempt, step=1) is None
    assert not Batch.objects.exists()
    assert leases.describe_wait(attempt).startswith("2 of 3 ready")


def test_what_is_not_ready_never_blocks_what_is(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    """Fault 2 of the reference: an unfinished trajectory at the head held up all others for ever."""
    add_trajectory(state="open", completed_at=None)
    add_trajectory(reward=None)  # missing is not zero
    ready = [add_trajectory(reward=1.0), add_trajectory(reward=0.0)]
    assert trajectories_of(lease(claim(launch()))) == [row.id for row in ready]


def test_kept_out_trajectories_and_steps_are_not_trained_on(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    """Fault 4 of the reference: curation never reached training."""
    add_trajectory(is_excluded=True)
    bad = [
        {"is_excluded": True},
        {"is_exact": False},
        {"side_call": SideCall.TITLE},
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"completion_ids": []},
        {"constraints": "response_format"},
    ]
    mixed = add_trajectory(reward=0.0, steps=[{}, *bad])
    good = add_trajectory(reward=1.0)
    batch = lease(claim(launch()))
    assert trajectories_of(batch) == [mixed.id, good.id]
    assert Batch.objects.get().discards == {
        "excluded": 1,
        "text_only": 1,
        "side_call": 1,
        "greedy": 1,
        "cut_sampling": 1,
        "empty": 1,
        "constrained": 1,
    }


def test_a_trajectory_is_trained_once(attempt: Attempt, tmp_path: Path) -> None:
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    assert leases.lease_batch(attempt, step=2) is None


def test_stale_steps_are_left_out(
    launch: LaunchRun, add_trajectory: AddTrajectory, base: Version, tmp_path: Path
) -> None:
    for reward in (1.0, 0.0, 1.0, 0.0):
        add_trajectory(reward=reward)
    attempt = claim(launch(max_staleness=0))
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    assert leases.lease_batch(attempt, step=2) is None  # the base is one version behind now
    assert "2 spoken by versions that are too old" in leases.describe_wait(attempt)
    new = Version.objects.get(number=1)
    fresh = [add_trajectory(reward=1.0, version=new), add_trajectory(reward=0.0, version=new)]
    assert trajectories_of(lease(attempt, step=2)) == [row.id for row in fresh]


def test_staleness_counts_versions_along_the_line(
    launch: LaunchRun, add_trajectory: AddTrajectory, tmp_path: Path
) -> None:
    for reward in (1.0, 0.0, 1.0, 0.0):
        add_trajectory(reward=reward)
    attempt = claim(launch(max_staleness=1))
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    lease(attempt, step=2)
    assert Batch.objects.get(step=2).staleness_mean == 1.0


def test_whole_groups_are_taken_and_singles_are_not(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    add_trajectory(reward=1.0)  # no group
    add_trajectory(reward=1.0, group="late")
    first = [add_trajectory(reward=reward, group="a") for reward in (1.0, 0.0)]
    second = [add_trajectory(reward=reward, group="b") for reward in (0.2, 0.6)]
    attempt = claim(launch(estimator="rloo", group_size=2, trajectories_per_step=4))
    batch = lease(attempt)
    assert trajectories_of(batch) == [row.id for row in (*first, *second)]
    assert [round(sample.advantage, 6) for sample in batch.samples] == [1.0, -1.0, -0.4, 0.4]


def test_a_batch_that_teaches_nothing_is_passed_over_once_and_never_spins(
    launch: LaunchRun, add_trajectory: AddTrajectory
) -> None:
    equal = [add_trajectory(reward=0.5) for _ in range(2)]
    good = [add_trajectory(reward=reward) for reward in (1.0, 0.0)]
    attempt = claim(launch())
    assert leases.lease_batch(attempt, step=1) is None
    assert trajectories_of(lease(attempt)) == [row.id for row in good]
    assert leases.lease_batch(attempt, step=2) is None
    skipped = Batch.objects.get(state=BatchState.SKIPPED)
    assert sorted(entry.trajectory_id for entry in skipped.entries.all()) == [row.id for row in equal]
    assert RunEvent.objects.filter(kind="batch.skipped").count() == 1
    assert reread(attempt).baseline["mean"] == 0.5  # the next ones are compared with what these were worth


def test_a_leased_batch_is_given_again_unchanged(attempt: Attempt, add_trajectory: AddTrajectory) -> None:
    batch = lease(attempt)
    add_trajectory(reward=0.3)
    assert lease(attempt) == batch
    assert Batch.objects.count() == 1


def test_a_relabelled_trajectory_keeps_the_reward_it_was_leased_with(attempt: Attempt, two_ready: Ready) -> None:
    batch = lease(attempt)
    Trajectory.objects.filter(pk=two_ready[0].pk).update(reward=-1.0)
    assert lease(attempt) == batch


def test_a_leased_batch_of_which_nothing_is_left_is_given_back(attempt: Attempt, two_ready: Ready) -> None:
    lease(attempt)
    for row in two_ready:
        row.steps.update(is_excluded=True)
    assert leases.lease_batch(attempt, step=1) is None
    assert Batch.objects.get().state == BatchState.RELEASED


def test_acknowledging_moves_everything_at_once(attempt: Attempt, tmp_path: Path, base: Version) -> None:
    batch = lease(attempt)
    assert leases.acknowledge_step(attempt, finish_step(batch, tmp_path)) == 1
    run = reread(attempt)
    version = Version.objects.get(number=1)
    assert (run.steps_done, run.baseline["mean"]) == (1, 0.5)
    assert not RunEvent.objects.filter(kind="step.gap").exists()
    assert (version.parent, version.state, version.goes_live) == (base, VersionState.PUBLISHED, True)
    assert version.lineage == {"base_model": "tiny", "run_id": run.id, "step": 1, "n_trajectories": 2}
    row = Batch.objects.get()
    assert (row.state, row.version) == (BatchState.TRAINED, version)
    metric = Metric.objects.get()
    assert metric.values == {
        "loss": 0.25,
        "kl": 0.01,
        "reward_mean": 0.5,
        "staleness_mean": 0.0,
        "trajectories": 2,
        "discards": 0,
    }


def test_a_gap_between_trainer_and_engine_is_said(attempt: Attempt, tmp_path: Path) -> None:
    event = finish_step(lease(attempt), tmp_path)
    leases.acknowledge_step(attempt, replace(event, metrics=event.metrics | {"mean_logprob_diff": 0.36}))
    assert "differ by 0.36 nats" in RunEvent.objects.get(kind="step.gap").message


@pytest.mark.parametrize(("drops", "n_samples"), [(True, 2), (False, 3)])
def test_a_trajectory_that_teaches_nothing_thins_out_no_mean(
    launch: LaunchRun, add_trajectory: AddTrajectory, drops: bool, n_samples: int
) -> None:
    for reward in (1.0, 0.5, 0.0):
        add_trajectory(reward=reward)
    batch = lease(claim(launch(trajectories_per_step=3, estimator="batch", drop_without_signal=drops)))
    assert len(batch.samples) == n_samples
    assert Batch.objects.get().discards == ({"no_signal": 1} if drops else {})


def test_answers_that_were_cut_off_are_left_out_and_their_rewards_still_count(
    launch: LaunchRun, add_trajectory: AddTrajectory
) -> None:
    add_trajectory(reward=1.0, steps=({}, {"finish_reason": "length"}))
    add_trajectory(reward=0.0, steps=({"finish_reason": "length"},))
    batch = lease(claim(launch(drop_cut_off=True)))
    assert [sample.advantage for sample in batch.samples] == [0.5]
    assert Batch.objects.get().discards == {"cut_off": 2}


def test_the_longest_answer_costs(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    """Both are worth 1, but one has an answer of two tokens where the cost is full at two."""
    add_trajectory(reward=0.0, steps=({"completion_ids": [4]}, {"completion_ids": [4, 5]}))
    add_trajectory(reward=1.0, steps=({"completion_ids": [4]},))
    attempt = claim(launch(overlong_tokens=2, overlong_window=1))
    Trajectory.objects.update(reward=1.0)
    assert sorted({sample.advantage for sample in lease(attempt).samples}) == [-0.5, 0.5]


def test_acknowledging_twice_is_acknowledging_once(attempt: Attempt, tmp_path: Path) -> None:
    event = finish_step(lease(attempt), tmp_path)
    assert leases.acknowledge_step(attempt, event) == 1
    assert leases.acknowledge_step(attempt, event) == 1
    assert Version.objects.count() == 2
    assert Metric.objects.count() == 1


def test_a_run_may_keep_its_versions_from_going_live(launch: LaunchRun, two_ready: Ready, tmp_path: Path) -> None:
    attempt = claim(launch(promote=False))
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    assert not Version.objects.get(number=1).goes_live


def test_the_next_version_stands_on_the_last(launch: LaunchRun, add_trajectory: AddTrajectory, tmp_path: Path) -> None:
    for reward in (1.0, 0.0, 1.0, 0.0):
        add_trajectory(reward=reward)
    attempt = claim(launch())
    for step in (1, 2):
        leases.acknowledge_step(attempt, finish_step(lease(attempt, step), tmp_path))
    assert Version.objects.get(number=2).parent == Version.objects.get(number=1)


def test_a_step_out_of_order_is_refused(attempt: Attempt, tmp_path: Path) -> None:
    batch = lease(attempt)
    event = finish_step(TrainBatch(step=2, samples=batch.samples, probe=batch.probe), tmp_path)
    with pytest.raises(Conflict, match="step 1 is next"):
        leases.acknowledge_step(attempt, event)


def test_a_step_without_a_lease_is_refused(attempt: Attempt, two_ready: Ready, tmp_path: Path) -> None:
    batch = lease(attempt)
    Batch.objects.all().delete()
    with pytest.raises(Conflict, match="no batch was leased"):
        leases.acknowledge_step(attempt, finish_step(batch, tmp_path))


def test_a_cancelled_runs_batch_goes_back_to_the_pool(attempt: Attempt, launch: LaunchRun, two_ready: Ready) -> None:
    lease(attempt)
    attempts.end_attempt(attempt, run_state=RunState.CANCELLED)
    assert Batch.objects.get().state == BatchState.RELEASED
    assert trajectories_of(lease(claim(launch()))) == [row.id for row in two_ready]


def cancel_and_resume(attempt: Attempt, caller: Caller) -> Attempt:
    attempts.end_attempt(attempt, run_state=RunState.CANCELLED)
    return claim(services.resume_run(run=reread(attempt), caller=caller))


def test_a_step_finished_while_it_was_given_back_still_counts_once(
    attempt: Attempt, owner_caller: Caller, tmp_path: Path
) -> None:
    event = finish_step(lease(attempt), tmp_path)
    again = cancel_and_resume(attempt, owner_caller)
    assert leases.acknowledge_step(again, event) == 1
    assert Batch.objects.get().state == BatchState.TRAINED
    assert BatchTrajectory.objects.filter(is_active=True).count() == 2


def test_a_step_whose_trajectories_another_run_took_meanwhile_is_refused(
    attempt: Attempt, launch: LaunchRun, owner_caller: Caller, tmp_path: Path
) -> None:
    event: TrainerEvent = finish_step(lease(attempt), tmp_path)
    attempts.end_attempt(attempt, run_state=RunState.CANCELLED)
    other = claim(launch())
    lease(other)
    leases.acknowledge_step(other, finish_step(lease(other), tmp_path / "other"))
    attempts.end_attempt(other, run_state=RunState.SUCCEEDED)
    again = claim(services.resume_run(run=reread(attempt), caller=owner_caller))
    with pytest.raises(Conflict, match="another run has used since"):
        leases.acknowledge_step(again, event)


def test_a_lost_attempt_can_neither_lease_nor_acknowledge(attempt: Attempt, tmp_path: Path) -> None:
    event = finish_step(lease(attempt), tmp_path)
    attempts.mark_lost(Attempt.objects.get(pk=attempt.pk))
    with pytest.raises(AttemptLost):
        leases.lease_batch(attempt, step=1)
    with pytest.raises(AttemptLost):
        leases.acknowledge_step(attempt, event)


def test_a_version_that_failed_its_check_is_a_reason_to_stop(attempt: Attempt, tmp_path: Path) -> None:
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    version = Version.objects.get(number=1)
    assert leases.describe_failed_version(attempt.run_id) == ""
    mark_failed(version, error="other weights")
    assert leases.describe_failed_version(attempt.run_id) == "version 1 did not pass its check: other weights"


def test_a_verified_version_is_none(attempt: Attempt, tmp_path: Path) -> None:
    leases.acknowledge_step(attempt, finish_step(lease(attempt), tmp_path))
    mark_ready(Version.objects.get(number=1), verification={})
    assert leases.describe_failed_version(attempt.run_id) == ""


@pytest.mark.django_db(transaction=True)
def test_many_workers_leasing_at_once_get_one_batch(attempt: Attempt, add_trajectory: AddTrajectory) -> None:
    for reward in (1.0, 0.0, 0.5, 0.1):
        add_trajectory(reward=reward)
    found: list[TrainBatch | None] = []

    def lease_one() -> None:
        try:
            found.append(leases.lease_batch(attempt, step=1))
        finally:
            connection.close()

    threads = [threading.Thread(target=lease_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert Batch.objects.count() == 1
    assert BatchTrajectory.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_rows_that_another_transaction_holds_are_passed_over(
    attempt: Attempt, two_ready: Ready, add_trajectory: AddTrajectory
) -> None:
    others = [add_trajectory(reward=reward) for reward in (1.0, 0.0)]
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM trajectories_trajectory WHERE id = %s FOR UPDATE", [two_ready[0].id])
            is_held.set()
            may_go.wait(timeout=10)
            cursor.execute("ROLLBACK")
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(timeout=10)
    try:
        assert trajectories_of(lease(attempt)) == [two_ready[1].id, others[0].id]
    finally:
        may_go.set()
        thread.join()


def advantages_of(batch: TrainBatch) -> dict[str, float]:
    return {sample.step_id: sample.advantage for sample in batch.samples}


THREE: list[dict[str, Any]] = [{"prompt_ids": [1, 2, 3, *range(10, 10 + n)]} for n in range(3)]


def reward_steps(trajectory: Trajectory, *rewards: float | None) -> list[str]:
    """Reward steps without touching the trajectory; returns their ids."""
    steps = list(trajectory.steps.order_by("index"))
    for step, reward in zip(steps, rewards, strict=True):
        Step.objects.filter(pk=step.pk).update(reward=reward)
    return [step.pk for step in steps]


def test_credit_by_step_goes_to_what_led_to_a_reward(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    """Rewards of steps alone: what comes behind the last of them has no return, and missing is not zero."""
    one, other = (add_trajectory(reward=reward, group="g", steps=THREE) for reward in (1.0, 0.0))
    good = reward_steps(one, None, 1.0, None)
    bad = reward_steps(other, None, -1.0, None)
    recipe = {"estimator": "rloo", "group_size": 2, "credit": "step", "turn_discount": 0.5}
    batch = lease(claim(launch(**recipe)))
    assert advantages_of(batch) == pytest.approx({good[0]: 1.0, good[1]: 2.0, bad[0]: -1.0, bad[1]: -2.0})
    assert Batch.objects.get().discards == {"no_reward": 2}


def test_a_trajectorys_own_reward_comes_at_its_end(
    launch: LaunchRun, add_trajectory: AddTrajectory, owner_caller: Caller
) -> None:
    one, other = (add_trajectory(reward=0.0, group="g", steps=THREE[:2]) for _ in range(2))
    add_label(caller=owner_caller, trajectory=one, value=1.0)
    add_label(caller=owner_caller, trajectory=one, step=one.steps.get(index=0), value=0.5)
    add_label(caller=owner_caller, trajectory=other, value=0.0)
    recipe = {"estimator": "rloo", "group_size": 2, "credit": "step"}
    found = advantages_of(lease(claim(launch(**recipe))))
    first, last = one.steps.order_by("index").values_list("id", flat=True)
    assert (found[first], found[last]) == pytest.approx((1.5, 1.0))


def test_credit_by_step_is_fed_again_unchanged(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    rows = [add_trajectory(reward=reward, group="g", steps=THREE) for reward in (1.0, 0.0)]
    for row, reward in zip(rows, (1.0, -1.0), strict=True):
        reward_steps(row, reward, None, None)
    attempt = claim(launch(estimator="rloo", group_size=2, credit="step"))
    before = lease(attempt)
    reward_steps(rows[0], -1.0, -1.0, -1.0)
    assert lease(attempt) == before


def test_a_critic_is_told_what_came_of_each_turn(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    one, other = (add_trajectory(reward=reward, steps=THREE) for reward in (1.0, 0.0))
    first, middle, _ = reward_steps(one, 0.5, 1.0, None)
    batch = lease(claim(launch(estimator="gae")))
    told = [(sample.step_id, sample.reward) for sample in batch.samples if sample.trajectory_id == one.id]
    assert told == [(first, 0.5), (middle, 1.0)]  # behind the last reward nothing is known
    assert [sample.reward for sample in batch.samples if sample.trajectory_id == other.id] == [0.0, 0.0, 0.0]
    assert {sample.advantage for sample in batch.samples} == {0.0}  # the trainer's to find
    assert Batch.objects.get().discards == {"no_reward": 1}


def test_a_run_takes_nothing_that_its_launcher_reviews_blind(
    launch: LaunchRun, two_ready: Ready, project: Project, owner: User
) -> None:
    caller = Caller(user=owner)
    attempt = claim(launch(selection={"min_reward": 0}))
    queue = create_queue(caller=caller, project=project, settings={"name": "q"})
    add_trajectories(caller=caller, queue=queue, ids=[two_ready[0].id])
    review = take_review(caller=caller, queue=queue)
    assert review is not None
    assert leases.lease_batch(attempt, step=1) is None
    assert leases.describe_wait(attempt).startswith("1 of 2 ready")
    assert f"what {owner.email} reviews blind waits" in leases.describe_wait(attempt)
    said = Submission(answers={"reward": {"value": 1.0}})
    submit_review(caller=caller, review=review, said=said)
    assert set(trajectories_of(lease(attempt))) == {row.id for row in two_ready}
