"""Workers that die or must go: real processes, real signals; the run goes on and nothing is trained twice."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from celery import current_app
from django.utils import timezone

from apps.core.contracts.tasks import QUEUE_TRAIN, TRAIN_RUN
from apps.training.models import Attempt, AttemptState, Batch, BatchState, Metric, Run, RunState
from tests.apps.training.conftest import AddTrajectory, LaunchRun
from tests.worker.tasks.conftest import ROOT, reread, wait_for
from worker.tasks.housekeep import rescue_runs
from worker.tasks.run_folder import run_folder
from worker.tasks.train import train_run
from worker.tasks.trainer_process import find_members, kill_orphan

pytestmark = pytest.mark.django_db(transaction=True)

Processes = list[subprocess.Popen[bytes]]
RUN_TASK = "import sys, django; django.setup(); from worker.tasks.train import train_run; train_run(sys.argv[1])"


@pytest.fixture
def run(launch: LaunchRun, add_trajectory: AddTrajectory) -> Run:
    for reward in (1.0, 0.0, 0.9, 0.1, 0.8, 0.3):
        add_trajectory(reward=reward)
    return launch()


def start_task(run: Run, environment: dict[str, str], processes: Processes) -> subprocess.Popen[bytes]:
    """Run the task in a process of its own, as a worker would."""
    argv = [sys.executable, "-W", "ignore", "-c", RUN_TASK, run.id]
    processes.append(subprocess.Popen(argv, env=environment, cwd=ROOT))
    return processes[-1]


def fall_silent() -> None:
    Attempt.objects.filter(state=AttemptState.RUNNING).update(heartbeat_at=timezone.now() - timedelta(minutes=5))


def trained_steps(run: Run) -> list[str]:
    return [line.split()[0] for line in (run_folder(run.id).path / "trained.txt").read_text().splitlines()]


def group_of(attempt: Attempt) -> int:
    group = Attempt.objects.get(pk=attempt.pk).process_group
    assert group is not None
    return group


def test_after_kill_9_of_the_worker_the_run_is_rescued_and_ends(
    run: Run,
    process_environment: dict[str, str],
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The orphaned trainer is one that minds nothing: only the rescue can end it."""
    worker = start_task(run, {**process_environment, "FAKE_TRAINER": "deaf"}, processes)
    wait_for(lambda: run_folder(run.id).has_batch(1))
    given = (run_folder(run.id).path / "inbox/batch-000001.json").read_text()
    lost = Attempt.objects.get()
    worker.kill()
    worker.wait()
    members = find_members(group_of(lost), run_dir=run_folder(run.id).path)
    assert len(members) == 1  # it outlives its worker

    rescue_runs()
    assert reread(run).state == RunState.RUNNING  # not silent for long enough
    fall_silent()
    rescue_runs()
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in members)
    lost.refresh_from_db()
    assert lost.state == AttemptState.LOST
    assert reread(run).state == RunState.QUEUED

    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert trained_steps(run) == ["1", "2", "3"]
    assert (run_folder(run.id).path / "inbox/batch-000001.json").read_text() == given
    assert Batch.objects.filter(step=1).count() == 1


def test_a_step_that_an_orphan_finished_is_acknowledged_by_the_next_worker(
    run: Run, process_environment: dict[str, str], processes: Processes
) -> None:
    """The trainer ended step 1 after its worker had died: it counts, and is not trained again."""
    worker = start_task(run, {**process_environment, "FAKE_TRAINER": "slow"}, processes)
    wait_for(lambda: run_folder(run.id).has_batch(1))
    os.kill(worker.pid, signal.SIGSTOP)  # alive, but it reads nothing any more
    wait_for((run_folder(run.id).path / "trained.txt").exists)
    worker.kill()
    worker.wait()
    assert reread(run).steps_done == 0
    fall_silent()
    rescue_runs()
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    assert trained_steps(run) == ["1", "2", "3"]
    assert Metric.objects.filter(step=1).count() == 1


def test_a_worker_that_wakes_up_too_late_is_fenced_off(
    run: Run, process_environment: dict[str, str], processes: Processes
) -> None:
    worker = start_task(run, {**process_environment, "FAKE_TRAINER": "stuck"}, processes)
    wait_for(lambda: run_folder(run.id).has_batch(1))
    os.kill(worker.pid, signal.SIGSTOP)
    fall_silent()
    rescue_runs()
    train_run(run.id)
    assert reread(run).state == RunState.SUCCEEDED
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait(timeout=30)
    assert reread(run).state == RunState.SUCCEEDED
    assert [attempt.state for attempt in Attempt.objects.order_by("number")] == ["lost", "ended"]


def test_someone_elses_process_group_is_left_alone(tmp_path: Path, processes: Processes) -> None:
    processes.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
    kill_orphan(processes[0].pid, run_dir=tmp_path)
    assert processes[0].poll() is None


def start_worker(environment: dict[str, str], processes: Processes) -> subprocess.Popen[bytes]:
    """Start a Celery worker as the Procfile does."""
    words = ["worker", "-Q", "train", "-P", "solo", "-n", "train@test", "--without-gossip", "--without-mingle"]
    argv = [sys.executable, "-W", "ignore", "-m", "celery", "-A", "clawplatform.celery", *words]
    processes.append(subprocess.Popen(argv, env=environment, cwd=ROOT))
    return processes[-1]


def test_sigterm_to_the_worker_leaves_a_run_that_the_next_worker_ends(
    run: Run, process_environment: dict[str, str], processes: Processes
) -> None:
    current_app.control.purge()
    current_app.send_task(TRAIN_RUN, args=[run.id], queue=QUEUE_TRAIN)
    worker = start_worker({**process_environment, "FAKE_TRAINER": "stuck"}, processes)
    wait_for(lambda: run_folder(run.id).has_batch(1), timeout_s=60)
    worker.terminate()
    assert worker.wait(timeout=30) == 0
    attempt = Attempt.objects.get()
    assert (attempt.state, attempt.error) == (AttemptState.ENDED, "the worker was asked to stop")
    assert reread(run).state == RunState.QUEUED
    assert Batch.objects.get().state == BatchState.LEASED
    assert find_members(group_of(attempt), run_dir=run_folder(run.id).path) == []

    start_worker({**process_environment, "FAKE_TRAINER": ""}, processes)  # its message is in the queue already
    wait_for(lambda: reread(run).state == RunState.SUCCEEDED, timeout_s=60)
    assert trained_steps(run) == ["1", "2", "3"]
