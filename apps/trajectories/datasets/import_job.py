"""Takes a file in: reads all of it, checks, writes trajectory by trajectory, and reports each bad line by its number.

A killed worker leaves whole trajectories and a row that says how many the file's are dealt with; the next one goes on
from there.
Rewards are labels and so the room's above: the caller says how they are given.
"""

import hashlib
from collections.abc import Iterator
from time import monotonic
from typing import Protocol

import structlog
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from apps.core.contracts.tasks import RUN_IMPORT
from apps.core.errors import ServiceError
from apps.core.live import publish_news
from apps.trajectories.datasets import import_file
from apps.trajectories.datasets.import_writing import Target, find_target, write_trajectory
from apps.trajectories.datasets.importing import INDEX, KIND, LINES, UPLOAD
from apps.trajectories.datasets.incoming import BadLine, Incoming, check_incoming, hash_incoming
from apps.trajectories.datasets.jobs import SLICE_S, Beat, LostJob, advance_job, claim_job, end_job, pause_job
from apps.trajectories.datasets.models import (
    AddedBy,
    DatasetMember,
    Import,
    ImportedTrajectory,
    ImportProblem,
    JobState,
    RowFormat,
)
from apps.trajectories.datasets.readers import READERS, Line
from apps.trajectories.datasets.rows import FORMATS, render_rows
from apps.trajectories.datasets.storage import is_disk_full, job_folder, remove_folder
from apps.trajectories.models import Step, Trajectory

log = structlog.get_logger(__name__)

MAX_PROBLEMS = 10_000  # kept by line; beyond them only the number is told
_NEWS_S = 1.0

_rows = Import.objects


class Reward(Protocol):
    """Gives a trajectory and its steps (by id) the rewards that they came with, as labels."""

    def __call__(
        self, *, trajectory: Trajectory, reward: float | None, step_rewards: dict[str, float], note: str
    ) -> None: ...


def run_import(import_id: str, *, reward: Reward, slice_s: float = SLICE_S) -> None:
    """Do the import or go on with it, for about `slice_s` seconds; then it waits for its next turn.

    Does nothing when another worker has it or it has ended.
    """
    if not claim_job(_rows.all(), import_id):
        return
    source = _rows.select_related("project__team", "agent", "dataset").get(pk=import_id)
    try:
        is_done = _Run(source, reward).work(slice_s)
    except LostJob:
        log.info("import.lost", source=import_id)
        return
    except OSError as error:
        if not is_disk_full(error):
            raise
        _give_up(source, "the disk is full: make room, then import the rest again")
    except ServiceError as error:
        _give_up(source, error.message)
    except Exception as error:  # a row that says "running" for ever would be worse, whatever it is
        log.exception("import.failed", source=import_id)
        _give_up(source, f"a fault of ours ({type(error).__name__}): the worker's log tells more, under {import_id}")
    else:
        if not is_done:
            return
    remove_folder(import_id, kind=KIND)


def _give_up(source: Import, error: str) -> None:
    try:
        end_job(_rows.all(), source, JobState.FAILED, error=error)
    except LostJob:
        log.info("import.lost", source=source.pk)


class _Run:
    """One worker's turn at an import."""

    def __init__(self, source: Import, reward: Reward) -> None:
        self.source = source
        self._reward = reward
        self._target: Target = find_target(source)
        self._beat = Beat(_rows.all(), source)
        self._news_at = 0.0
        self._n_told = source.n_refused
        folder = job_folder(source.pk, kind=KIND)
        self._index = folder / INDEX
        self._path = import_file.make_lines(folder / UPLOAD, folder / LINES, tick=self._beat.tick)

    def work(self, slice_s: float) -> bool:
        """Return whether the import has ended."""
        if self.source.cursor is None:
            self._look()
        if self.source.is_all_or_none and not self.source.is_checked and self._refuses():
            return True
        ends = monotonic() + slice_s
        for lines, incoming in self._read(first=self.source.cursor or 0):
            self._take(lines, incoming)
            if monotonic() > ends:
                pause_job(_rows.all(), self.source, RUN_IMPORT)
                return False
        end_job(_rows.all(), self.source, JobState.DONE)
        return True

    def _look(self) -> None:
        row_format, tick = self.source.row_format, self._beat.tick
        found = import_file.index_file(self._path, self._index, row_format=row_format, tick=tick)
        counts = {"n_lines": found.n_lines, "n_total": found.n_groups, "n_refused": len(found.problems)}
        with transaction.atomic():
            self._report(found.problems)
            advance_job(_rows.all(), self.source, cursor=0, **counts)

    def _refuses(self) -> bool:
        """Look at everything before anything is written; one bad line refuses all."""
        problems = []
        for _, incoming in self._read():
            self._beat.tick()
            if isinstance(incoming, BadLine):
                problems.append(incoming)
        n = self.source.n_refused + len(problems)
        if not n:
            advance_job(_rows.all(), self.source, is_checked=True)
            return False
        self._report(problems)
        words = f"nothing was imported: {n} line{'s' if n > 1 else ''} cannot be read, and all or none was asked"
        end_job(_rows.all(), self.source, JobState.FAILED, error=words, n_refused=n)
        return True

    def _read(self, *, first: int = 0) -> Iterator[tuple[list[Line], Incoming | BadLine]]:
        for name, lines in import_file.read_groups(self._path, self._index, first=first):
            try:
                incoming = READERS[name].read(lines)
                check_incoming(incoming)
                for step in incoming.steps:
                    self._target.check_tokens(step)
            except BadLine as problem:
                yield lines, _tell_span(problem, lines[0][0], lines[-1][0])
            else:
                yield lines, incoming

    @transaction.atomic
    def _take(self, lines: list[Line], incoming: Incoming | BadLine) -> None:
        """Deal with one trajectory and move on, both or neither."""
        if isinstance(incoming, BadLine):
            self._report([incoming])
            self._move_on("n_refused")
            return
        _lock(self.source.project_id)
        digest = hash_incoming(incoming)
        if not self.source.is_again and self._is_known(incoming, digest):
            self._move_on("n_known")
            return
        self._write(incoming, digest, line=lines[0][0])
        self._move_on("n_imported")

    def _report(self, problems: list[BadLine]) -> None:
        """Keep bad lines, as many as anybody will read."""
        kept = problems[: max(MAX_PROBLEMS - self._n_told, 0)]
        self._n_told += len(problems)
        ImportProblem.objects.bulk_create(
            [ImportProblem(source=self.source, line=problem.line, reason=_clean(problem.reason)) for problem in kept],
            batch_size=1000,
        )

    def _move_on(self, counted: str) -> None:
        mine = _rows.filter(pk=self.source.pk, claim=self.source.claim, state=JobState.RUNNING)
        if not mine.update(**{"cursor": F("cursor") + 1, counted: F(counted) + 1, "beat_at": timezone.now()}):
            raise LostJob(self.source.pk)
        if self._news_at + _NEWS_S < monotonic():
            self._news_at = monotonic()
            publish_news(self.source.project_id, kind="import", object_id=self.source.pk)

    def _is_known(self, incoming: Incoming, digest: str) -> bool:
        """Say whether the project has this content: from another import, or where it was exported from."""
        alive = Trajectory.objects.of_project(self.source.project)
        others = ImportedTrajectory.objects.filter(project=self.source.project_id).exclude(source=self.source)
        if others.filter(digest=digest, trajectory__in=alive).exists():
            return True
        original = alive.filter(pk=incoming.source_id).first() if incoming.source_id.startswith("traj_") else None
        return original is not None and _is_same(original, incoming)

    def _write(self, incoming: Incoming, digest: str, *, line: int) -> None:
        own = ImportedTrajectory.objects.filter(source=self.source, digest=digest)
        if own.exists():  # twice in one file is two, and the first stands for both
            digest = hashlib.sha256(f"{digest} {line}".encode()).hexdigest()
        trajectory, steps = write_trajectory(self._target, incoming)
        ImportedTrajectory.objects.create(
            source=self.source, project_id=self.source.project_id, digest=digest, trajectory=trajectory
        )
        self._reward(
            trajectory=trajectory,
            reward=incoming.reward,
            step_rewards=_pair_rewards(steps, incoming),
            note=f"imported from {self.source.file_name} ({self.source.pk})",
        )
        if self.source.dataset_id is not None:
            DatasetMember.objects.create(
                dataset_id=self.source.dataset_id,
                trajectory=trajectory,
                added_how=AddedBy.IMPORT,
                added_by=self.source.created_by,
            )


def _is_same(original: Trajectory, incoming: Incoming) -> bool:
    for shape in FORMATS:
        rows = list(enumerate(render_rows(original, shape=shape), start=1))
        if rows and hash_incoming(READERS[RowFormat.CLAW].read(rows)) == hash_incoming(incoming):
            return True
    return False


def _pair_rewards(steps: list[Step], incoming: Incoming) -> dict[str, float]:
    return {step.pk: said.reward for step, said in zip(steps, incoming.steps, strict=True) if said.reward is not None}


def _tell_span(problem: BadLine, first: int, last: int) -> BadLine:
    """Say which lines go with a bad one: a trajectory with a hole in it would be another trajectory."""
    if first == last:
        return problem
    return BadLine(problem.line, f"{problem.reason}; its trajectory (lines {first} to {last}) is left out")


def _clean(reason: str) -> str:
    return reason.replace("\x00", "").encode("utf-8", "replace").decode()[:2000]


def _lock(project_id: str) -> None:
    """Two imports of one file into one project at once must not both find that it is new."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"import {project_id}"])
