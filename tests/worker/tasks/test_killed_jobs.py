"""A worker that is killed in the middle of a job over many trajectories: a real process, kill -9."""

import subprocess
import sys

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.feedback.bulk import ACTIONS
from apps.trajectories.bulk import services
from apps.trajectories.bulk.models import BulkJob, JobState, TrajectoryTag
from apps.trajectories.bulk.running import run_job
from apps.trajectories.models import Trajectory
from tests.factories.trajectories import TrajectoryFactory
from tests.worker.tasks.conftest import ROOT, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

N_ROWS = 2000
TASK = "import sys, django; django.setup(); from worker.tasks.bulk import run_bulk_job; run_bulk_job(sys.argv[1])"


def kill_midway(job: BulkJob, environment: dict[str, str], *, count: str) -> int:
    """Have a worker process do the job, kill it when it has done something; return how much that was."""
    argv = [sys.executable, "-W", "ignore", "-c", TASK, job.pk]
    with subprocess.Popen(argv, env=environment, cwd=ROOT) as worker:
        try:
            wait_for(lambda: getattr(BulkJob.objects.get(pk=job.pk), count) > 0)
        finally:
            worker.kill()
    done: int = getattr(BulkJob.objects.get(pk=job.pk), count)
    assert 0 < done < N_ROWS
    return done


def test_a_job_and_its_undo_go_on_where_their_worker_was_killed(
    project: Project, agent: Agent, trainer: User, process_environment: dict[str, str]
) -> None:
    Trajectory.objects.bulk_create(TrajectoryFactory.build_batch(N_ROWS, agent=agent, project=project))
    caller = Caller(user=trainer)
    job = services.start_job(
        caller=caller, project=project, action=ACTIONS["tag"], settings={"tag": "seen"}, query="-tag:seen"
    )
    done = kill_midway(job, process_environment, count="n_done")
    assert TrajectoryTag.objects.count() == done  # what is counted is done, and nothing else

    run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    assert (job.state, job.n_done, job.n_failed) == (JobState.DONE, N_ROWS, 0)
    assert TrajectoryTag.objects.count() == N_ROWS

    services.undo_job(caller=caller, job=job, action=ACTIONS["tag"])
    undone = kill_midway(job, process_environment, count="n_undone")
    assert TrajectoryTag.objects.count() == N_ROWS - undone

    run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    assert (job.state, job.n_undone) == (JobState.UNDONE, N_ROWS)
    assert not TrajectoryTag.objects.exists()
