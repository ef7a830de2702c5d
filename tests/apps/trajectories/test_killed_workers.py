"""Background work whose worker is killed (SIGKILL, a process of its own) in the midst: the next one ends it, as if
nothing had been."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import connections
from django.utils import timezone
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.exports import SHAPES
from apps.feedback.importing import reward_imported
from apps.feedback.models import Label
from apps.trajectories.bulk import running, services
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.datasets import export_job, exporting, import_job, importing
from apps.trajectories.datasets.models import Export, Import
from apps.trajectories.datasets.shapes import TOKENS
from apps.trajectories.models import Step, Trajectory
from tests.apps.trajectories.datasets.import_rows import CHAT
from tests.apps.trajectories.datasets.importer import as_lines
from tests.factories.trajectories import StepFactory

pytestmark = pytest.mark.django_db(transaction=True)
N = 120
PIECE = 5


@pytest.fixture
def rows(agent: Agent) -> list[Trajectory]:
    made = Trajectory.objects.bulk_create(
        Trajectory(id=new_id("traj"), project=agent.project, agent=agent, n_steps=1) for _ in range(N)
    )
    Step.objects.bulk_create(StepFactory.build(trajectory=row, index=0) for row in made)
    return made


@pytest.fixture
def caller(trainer: User) -> Caller:
    return Caller(user=trainer)


@pytest.fixture(autouse=True)
def small_pieces(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})
    monkeypatch.setattr(running, "PIECE", PIECE)
    monkeypatch.setattr(import_job, "PIECE", PIECE)


@contextmanager
def working(work: Callable[[], None]) -> Iterator[None]:
    """Have a process do the work beside the block, at whose end it is killed."""
    connections.close_all()  # a process must not say good-bye on another's connection
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), "it was done before it could be killed"


def kill_after(work: Callable[[], None], *, how_far: Callable[[], int], until: int) -> int:
    """Kill who does the work when it is so far; return how far it was."""
    with working(work):
        end = time.monotonic() + 60
        while how_far() < until:
            assert time.monotonic() < end
            time.sleep(0.002)
    return how_far()


def read_numbers(model: type[BulkJob | Export | Import], pk: str, name: str) -> Callable[[], int]:
    return lambda: model._default_manager.values_list(name, flat=True).get(pk=pk) or 0


def test_a_change_of_many_rows_and_its_undo(rows: list[Trajectory], project: Project, caller: Caller) -> None:
    job = services.start_job(caller=caller, project=project, action=ACTIONS["reward"], settings={"value": 1}, query="")

    def work() -> None:
        running.run_job(job.pk, actions=ACTIONS)

    for until in (10, 60):
        n_done = kill_after(work, how_far=read_numbers(BulkJob, job.pk, "n_done"), until=until)
        assert until <= n_done < N
        assert Label.objects.count() == n_done
    work()
    job.refresh_from_db()
    assert (job.state, job.n_done, Label.objects.count()) == ("done", N, N)
    assert set(Trajectory.objects.values_list("reward", flat=True)) == {1.0}

    services.undo_job(caller=caller, job=job, action=ACTIONS["reward"])
    n_undone = kill_after(work, how_far=read_numbers(BulkJob, job.pk, "n_undone"), until=10)
    assert 10 <= n_undone < N
    assert Trajectory.objects.filter(reward=None).count() == n_undone
    work()
    job.refresh_from_db()
    assert (job.state, job.n_undone) == ("undone", N)
    assert set(Trajectory.objects.values_list("reward", flat=True)) == {None}


@pytest.mark.parametrize("file_format", ["jsonl", "parquet"])
def test_an_export(rows: list[Trajectory], project: Project, caller: Caller, file_format: str) -> None:
    def start() -> Export:
        return exporting.start_export(project=project, caller=caller, shape=TOKENS, file_format=file_format, query="")

    quiet, export = start(), start()
    export_job.run_export(quiet.pk, shapes=SHAPES, part=PIECE)
    for turn in range(2):
        with time_machine.travel(timezone.now() + timedelta(minutes=2 * turn), tick=True):
            n_done = kill_after(
                lambda: export_job.run_export(export.pk, shapes=SHAPES, part=PIECE),
                how_far=read_numbers(Export, export.pk, "n_done"),
                until=40 * (turn + 1),
            )
            assert n_done < N
    with time_machine.travel(timezone.now() + timedelta(minutes=9), tick=True):
        export_job.run_export(export.pk, shapes=SHAPES, part=PIECE)
    for done in (quiet, export):
        done.refresh_from_db()
        assert (done.state, done.n_done, done.n_rows) == ("done", N, N)
    assert exporting.file_path(export).read_bytes() == exporting.file_path(quiet).read_bytes()


def test_an_import(agent: Agent, caller: Caller) -> None:
    lines: list[Any] = [{**CHAT, "number": number} for number in range(N)]
    content = as_lines([*lines[:50], b"{", *lines[50:]])
    source = importing.start_import(
        agent=agent,
        caller=caller,
        chunks=[content],
        file_name="a",
        n_bytes=len(content),
        settings=importing.ImportSettings(),
    )

    def work() -> None:
        import_job.run_import(source.pk, reward=reward_imported)

    n_imported = kill_after(work, how_far=read_numbers(Import, source.pk, "n_imported"), until=20)
    assert 20 <= n_imported < N
    assert Trajectory.objects.count() == n_imported
    with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=True):
        work()
    source.refresh_from_db()
    assert (source.state, source.n_imported, source.n_known, source.n_refused) == ("done", N, 0, 1)
    numbers = sorted(metadata["number"] for metadata in Trajectory.objects.values_list("metadata", flat=True))
    assert numbers == list(range(N)), json.dumps(numbers)
