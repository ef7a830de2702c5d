"""One attempt at a run with a trainer that is a real process: fed, acknowledged, ended, and believed or not."""

import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import OperationalError
from django.utils import timezone

from apps.accounts.access import Caller
from apps.core.contracts.training import EVENTS_FILE
from apps.registry.models import Version
from apps.registry.services import mark_failed
from apps.training import attempts, leases, services
from apps.training.models import Attempt, AttemptState, Batch, BatchState, Metric, Run, RunEvent, RunState
from apps.trajectories.models import Trajectory
from tests.apps.training.conftest import AddTrajectory, LaunchRun, claim
from tests.worker.tasks.conftest import fast, later, reread
from worker.tasks import supervision
from worker.tasks.run_folder import run_folder
from worker.tasks.train import run_attempt, train_run
from worker.tasks.trainer_process import find_members

pytestmark = pytest.mark.django_db(transaction=True)

Misbehave = Callable[[str], None]


@pytest.fixture
def pool(add_trajectory: AddTrajectory) -> list[Trajectory]:
    """Enough for the three steps of a run."""
    return [add_trajectory(reward=reward) for reward in (1.0, 0.0, 0.9, 0.1, 0.8, 0.3)]


@pytest.fixture
def run(launch: LaunchRun, pool: list[Trajectory]) -> Run:
    return launch(restarts=0)


def has_batch(run: Run, step: int) -> bool:
    return run_folder(run.id).has_batch(step)


def trained_lines(run: Run) -> list[str]:
    path = run_folder(run.id).path / "trained.txt"
    return path.read_text().splitlines() if path.exists() else []


def assert_nothing_is_left(attempt: Attempt) -> None:
    group = Attempt.objects.get(pk=attempt.pk).process_group
    assert group is not None
    assert find_members(group, run_dir=run_folder(attempt.run_id).path) == []


def test_a_run_is_trained_to_its_end(run: Run) -> None:
    train_run(run.id)
    run = reread(run)
    assert (run.state, run.steps_done, run.error) == (RunState.SUCCEEDED, 3, "")
    assert list(Version.objects.order_by("number").values_list("number", flat=True)) == [0, 1, 2, 3]
    assert Metric.objects.count() == 3
    assert set(Batch.objects.values_list("state", flat=True)) == {BatchState.TRAINED}
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.exit_code) == (AttemptState.ENDED, 0)
    assert_nothing_is_left(attempt)


def test_checkpoints_stay_for_as_long_as_a_run_may_go_on(run: Run, misbehave: Misbehave, owner_caller: Caller) -> None:
    checkpoints = run_folder(run.id).path / "checkpoints"
    misbehave("crash:2")
    train_run(run.id)
    assert [path.name for path in checkpoints.iterdir()] == ["step-000001"]
    misbehave("")
    services.resume_run(run=reread(run), caller=owner_caller)
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert not checkpoints.exists()


def test_batches_that_no_trainer_can_ask_for_again_do_not_fill_the_disk(
    launch: LaunchRun, add_trajectory: AddTrajectory
) -> None:
    for reward in (1.0, 0.0) * 4:
        add_trajectory(reward=reward)
    run = launch(n_steps=4, keep_checkpoints=1)
    train_run(run.id)
    assert [has_batch(run, step) for step in (1, 2, 3, 4)] == [False, True, True, True]


def test_a_second_message_changes_nothing(run: Run) -> None:
    train_run(run.id)
    train_run(run.id)
    assert Attempt.objects.count() == 1


def test_the_trainer_gets_no_secrets(run: Run, trainer_python: Path, tmp_path: Path) -> None:
    script = trainer_python.read_text().splitlines()
    trainer_python.write_text("\n".join([script[0], f"env > {tmp_path}/environment", *script[1:]]) + "\n")
    train_run(run.id)
    environment = (tmp_path / "environment").read_text()
    assert "DATABASE_URL" not in environment
    assert "PYTHONPATH=" in environment


def test_a_crash_is_told_with_exit_code_and_last_words(run: Run, misbehave: Misbehave) -> None:
    misbehave("crash:2")
    train_run(run.id)
    run = reread(run)
    assert (run.state, run.steps_done) == (RunState.FAILED, 1)
    assert "ended with exit code 7" in run.error
    assert "CUDA out of memory" in run.error
    assert Batch.objects.get(step=2).state == BatchState.RELEASED
    assert not has_batch(run, 2)
    assert Attempt.objects.get().exit_code == 7


def test_a_failure_is_told_in_the_trainers_words(run: Run, misbehave: Misbehave) -> None:
    misbehave("fail:1")
    train_run(run.id)
    assert reread(run).error == "loss is not a number"


def test_a_crashed_run_goes_on_where_it_stood(run: Run, misbehave: Misbehave, owner_caller: Caller) -> None:
    misbehave("crash:2")
    train_run(run.id)
    misbehave("")
    services.resume_run(run=reread(run), caller=owner_caller)
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert [line.split()[0] for line in trained_lines(run)] == ["1", "2", "3"]
    assert Version.objects.count() == 4


def test_a_step_kept_back_by_a_crash_is_told_and_acknowledged_once(
    run: Run, misbehave: Misbehave, owner_caller: Caller
) -> None:
    misbehave("late:2")
    train_run(run.id)
    assert "was killed by signal 9" in reread(run).error
    misbehave("")
    services.resume_run(run=reread(run), caller=owner_caller)
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert [line.split()[0] for line in trained_lines(run)] == ["1", "2", "3"]
    assert Metric.objects.count() == 3


def test_what_it_did_counts_more_than_its_exit_code(run: Run, misbehave: Misbehave) -> None:
    misbehave("abort")
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert Attempt.objects.get().exit_code == 134


def test_a_trainer_that_never_gets_ready_is_ended(run: Run, misbehave: Misbehave) -> None:
    misbehave("silent")
    attempt = claim(run)
    run_attempt(attempt, limits=fast(start_s=0.5))
    assert reread(run).error == "the trainer was not ready after 0 s"
    assert_nothing_is_left(attempt)


def test_a_step_that_never_ends_is_ended(launch: LaunchRun, pool: list[Trajectory], misbehave: Misbehave) -> None:
    run = launch(restarts=0, step_limit_s=1)
    misbehave("stuck")
    attempt = claim(run)
    run_attempt(attempt, limits=fast())
    assert reread(run).error == "the trainer did not finish step 1 in 1 s"
    assert_nothing_is_left(attempt)


def test_a_trainer_of_which_one_process_hangs_is_ended_and_started_again(
    launch: LaunchRun, pool: list[Trajectory], misbehave: Misbehave
) -> None:
    run = launch(silence_limit_s=1)
    misbehave("mute")
    attempt = claim(run)
    run_attempt(attempt, limits=fast())
    attempt.refresh_from_db()
    assert (attempt.state, reread(run).state) == (AttemptState.CRASHED, RunState.QUEUED)
    assert attempt.error == "process 1 of the trainer shows no sign of work in step 1: it hangs"
    assert Batch.objects.get().state == BatchState.LEASED
    assert_nothing_is_left(attempt)
    misbehave("")
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED


def test_a_crashed_trainer_is_started_again_so_often_as_the_recipe_allows(
    launch: LaunchRun, pool: list[Trajectory], misbehave: Misbehave
) -> None:
    run = launch(restarts=2)
    misbehave("crash:2")
    for expected in (RunState.QUEUED, RunState.QUEUED, RunState.FAILED):
        train_run(run.id)
        assert reread(run).state == expected
    assert [one.state for one in Attempt.objects.order_by("number")] == ["crashed", "crashed", "ended"]
    assert [line.split()[0] for line in trained_lines(run)] == ["1"]
    assert Version.objects.count() == 2


def test_a_failure_that_would_come_again_is_not_tried_again(
    launch: LaunchRun, pool: list[Trajectory], misbehave: Misbehave
) -> None:
    run = launch(restarts=3)
    misbehave("fail:1")
    train_run(run.id)
    assert reread(run).state == RunState.FAILED


def test_a_trainer_that_went_back_to_an_older_checkpoint_repeats_its_steps_and_says_so(
    launch: LaunchRun, pool: list[Trajectory], misbehave: Misbehave, owner_caller: Caller
) -> None:
    run = launch(restarts=0)
    misbehave("crash:3")
    train_run(run.id)
    shutil.rmtree(run_folder(run.id).path / "checkpoints/step-000002")
    misbehave("")
    services.resume_run(run=reread(run), caller=owner_caller)
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert [line.split()[0] for line in trained_lines(run)] == ["1", "2", "2", "3"]
    assert Version.objects.count() == 4
    assert RunEvent.objects.filter(kind="checkpoint.damaged", message__contains="Went back").exists()


def test_a_cancelled_run_ends_with_its_batch_given_back(run: Run, misbehave: Misbehave, owner_caller: Caller) -> None:
    misbehave("stuck")
    attempt = claim(run)
    thread = later(lambda: services.cancel_run(run=run, caller=owner_caller), when=lambda: has_batch(run, 1))
    run_attempt(attempt, limits=fast())
    thread.join()
    run = reread(run)
    assert (run.state, run.error) == (RunState.CANCELLED, "")
    assert Batch.objects.get().state == BatchState.RELEASED
    assert not has_batch(run, 1)
    assert_nothing_is_left(attempt)


def test_a_trainer_that_minds_nothing_is_killed(run: Run, misbehave: Misbehave, owner_caller: Caller) -> None:
    misbehave("deaf")
    attempt = claim(run)
    thread = later(lambda: services.cancel_run(run=run, caller=owner_caller), when=lambda: has_batch(run, 1))
    run_attempt(attempt, limits=fast(stop_s=0.3, kill_s=0.3))
    thread.join()
    assert reread(run).state == RunState.CANCELLED
    assert Attempt.objects.get().exit_code == -9
    assert_nothing_is_left(attempt)


def test_a_worker_that_must_go_leaves_batch_and_run_for_the_next(
    run: Run, misbehave: Misbehave, monkeypatch: pytest.MonkeyPatch
) -> None:
    misbehave("stuck")
    monkeypatch.setattr(supervision, "is_worker_stopping", lambda: has_batch(run, 1))
    run_attempt(claim(run), limits=fast(shutdown_s=3))
    assert reread(run).state == RunState.QUEUED
    leased = Batch.objects.get()
    assert leased.state == BatchState.LEASED
    first = (run_folder(run.id).path / "inbox/batch-000001.json").read_text()
    monkeypatch.setattr(supervision, "is_worker_stopping", lambda: False)
    misbehave("")
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert (run_folder(run.id).path / "inbox/batch-000001.json").read_text() == first
    assert Batch.objects.get(step=1).pk == leased.pk


def test_it_waits_for_data_and_says_what_it_waits_for(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(reward=reward)
    run = launch(n_steps=2)
    attempt = claim(run)

    def feed() -> None:
        for reward in (0.7, 0.2):
            add_trajectory(reward=reward)

    thread = later(feed, when=lambda: reread(run).status_line.startswith("waits for trajectories: 0 of 2 ready"))
    run_attempt(attempt, limits=fast())
    thread.join()
    assert reread(run).state == RunState.SUCCEEDED


def test_it_ends_in_words_when_no_data_comes(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(reward=reward)
    add_trajectory(reward=None)
    run = launch(n_steps=2, wait_for_data_s=0.5)
    run_attempt(claim(run), limits=fast())
    run = reread(run)
    assert (run.state, run.steps_done) == (RunState.FAILED, 1)
    assert run.error.startswith("waited 0 s for trajectories to train on: 0 of 2 ready; 1 without a reward")
    assert Version.objects.count() == 2  # what was published stays


def test_it_stops_when_its_version_fails_its_check(launch: LaunchRun, add_trajectory: AddTrajectory) -> None:
    for reward in (1.0, 0.0):
        add_trajectory(reward=reward)
    run = launch(n_steps=2)
    attempt = claim(run)
    thread = later(
        lambda: mark_failed(Version.objects.get(number=1), error="other weights"),
        when=lambda: Version.objects.filter(number=1).exists(),
    )
    run_attempt(attempt, limits=fast())
    thread.join()
    assert reread(run).error == "version 1 did not pass its check: other weights"


def test_an_attempt_that_was_taken_over_ends_its_trainer_and_changes_nothing(run: Run, misbehave: Misbehave) -> None:
    misbehave("deaf")

    def lose() -> None:
        Attempt.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
        attempts.mark_lost(Attempt.objects.select_related("run").get())

    thread = later(lose, when=lambda: has_batch(run, 1))
    train_run(run.id)
    thread.join()
    attempt = Attempt.objects.get()
    assert (attempt.state, reread(run).state) == (AttemptState.LOST, RunState.RUNNING)
    assert_nothing_is_left(attempt)


def test_a_database_that_is_away_for_a_moment_is_survived(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = leases.acknowledge_step, iter([True, True])

    def flaky(*args: object, **kwargs: object) -> int:
        if next(failures, False):
            raise OperationalError("server closed the connection unexpectedly")
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(leases, "acknowledge_step", flaky)
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert Metric.objects.count() == 3


def test_a_database_that_stays_away_ends_the_trainer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> int:
        raise OperationalError("no route to host")

    monkeypatch.setattr(leases, "acknowledge_step", away)
    attempt = claim(run)
    with pytest.raises(OperationalError):
        run_attempt(attempt, limits=fast(database_s=0.5))
    assert_nothing_is_left(attempt)


def test_a_missing_ml_environment_is_said_clearly(run: Run, settings: object, tmp_path: Path) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"ml_python": tmp_path / "nowhere"})  # type: ignore[attr-defined]
    train_run(run.id)
    run = reread(run)
    assert run.state == RunState.FAILED
    assert "the trainer cannot be started with" in run.error


def test_a_run_whose_checkpoint_is_gone_says_so(run: Run, misbehave: Misbehave, owner_caller: Caller) -> None:
    misbehave("crash:2")
    train_run(run.id)
    shutil.rmtree(run_folder(run.id).path)
    misbehave("")
    services.resume_run(run=reread(run), caller=owner_caller)
    train_run(run.id)
    assert "the trainer stands at step 0, the run at step 1" in reread(run).error
    assert Version.objects.count() == 2


def test_an_event_that_cannot_be_read_fails_the_run(run: Run) -> None:
    folder = run_folder(run.id).path
    folder.mkdir(parents=True)
    (folder / EVENTS_FILE).write_text('{"kind": "step"}\n')
    train_run(run.id)
    assert "missing fields" in reread(run).error


def test_the_history_reads_like_a_story(run: Run) -> None:
    train_run(run.id)
    kinds = list(RunEvent.objects.order_by("id").values_list("kind", flat=True))
    assert kinds == [
        "run.launched",
        "attempt.started",
        *["batch.leased", "step.done"] * 3,
        "run.succeeded",
    ]


def test_the_worker_process_is_not_the_trainers_group(run: Run) -> None:
    train_run(run.id)
    assert Attempt.objects.get().process_group != os.getpgrp()
