"""Takes a file in: reads all of it, checks, writes some trajectories at a time, and reports bad lines by their numbers.

A killed worker leaves whole trajectories and a row that says how many the file's are dealt with; the next one goes on
from there.
Rewards are labels and so the room's above: the caller says how they are given.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import Protocol

from django.db import connection, transaction

from apps.core.contracts.tasks import RUN_IMPORT
from apps.core.ids import is_id
from apps.trajectories.datasets import import_file
from apps.trajectories.datasets.import_writing import Target, find_target, write_trajectories
from apps.trajectories.datasets.importing import INDEX, KIND, LINES, UPLOAD
from apps.trajectories.datasets.incoming import BadLine, Incoming, Rewarded, check_incoming, hash_incoming
from apps.trajectories.datasets.jobs import (
    SLICE_S,
    Beat,
    advance_job,
    check_tries,
    claim_job,
    end_job,
    failing_in_words,
    pause_job,
)
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
from apps.trajectories.datasets.rows import Source, render_conversations, render_tokens
from apps.trajectories.datasets.storage import job_folder, remove_folder
from apps.trajectories.models import Step, Trajectory

MAX_PROBLEMS = 10_000  # kept by line; beyond them only the number is told
PIECE = 25  # trajectories in one transaction

Group = tuple[list[Line], Incoming | BadLine]
"""The lines of one trajectory and what they say."""


class Reward(Protocol):
    """Gives trajectories of one project and their steps the rewards that they came with, as labels."""

    def __call__(self, given: Sequence[Rewarded], *, note: str) -> None: ...


def run_import(import_id: str, *, reward: Reward, slice_s: float = SLICE_S) -> None:
    """Do the import or go on with it, for about `slice_s` seconds; then it waits for its next turn.

    Does nothing when another worker has it or it has ended.
    """
    if not claim_job(Import.objects.all(), import_id):
        return
    source = Import.objects.select_related("project__team", "agent", "dataset").get(pk=import_id)
    with failing_in_words(source, again="import the rest again"):
        check_tries(source)
        _Run(source, reward).work(ends=monotonic() + slice_s)
    if source.is_final:
        remove_folder(import_id, kind=KIND)


class _Run:
    """One worker's turn at an import."""

    def __init__(self, source: Import, reward: Reward) -> None:
        self.source = source
        self._reward = reward
        self._target: Target = find_target(source)
        self._beat = Beat(source)
        self._n_told = source.n_refused
        folder = job_folder(source.pk, kind=KIND)
        self._index = folder / INDEX
        self._path = import_file.make_lines(folder / UPLOAD, folder / LINES, tick=self._beat.tick)

    def work(self, *, ends: float) -> None:
        """Go on until the import has ended, or until that moment (`monotonic`)."""
        if self.source.cursor is None:
            self._look()
        if self.source.is_all_or_none and not self.source.is_checked and self._refuses():
            return
        for piece in _cut(self._read(first=self.source.cursor or 0)):
            self._take(piece)
            if monotonic() > ends:
                pause_job(self.source, RUN_IMPORT)
                return
        end_job(self.source, JobState.DONE)

    def _look(self) -> None:
        row_format, tick = self.source.row_format, self._beat.tick
        found = import_file.index_file(self._path, self._index, row_format=row_format, tick=tick)
        counts = {"n_lines": found.n_lines, "n_total": found.n_groups, "n_refused": len(found.problems)}
        with transaction.atomic():
            self._report(found.problems)
            advance_job(self.source, cursor=0, **counts)

    def _refuses(self) -> bool:
        """Look at everything before anything is written; one bad line refuses all."""
        problems = []
        for _, incoming in self._read():
            self._beat.tick()
            if isinstance(incoming, BadLine):
                problems.append(incoming)
        n = self.source.n_refused + len(problems)
        if not n:
            advance_job(self.source, is_checked=True)
            return False
        self._report(problems)
        words = f"nothing was imported: {n} line{'s' if n > 1 else ''} cannot be read, and all or none was asked"
        end_job(self.source, JobState.FAILED, error=words, n_refused=n)
        return True

    def _read(self, *, first: int = 0) -> Iterator[Group]:
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
    def _take(self, piece: Sequence[Group]) -> None:
        """Deal with some trajectories and move on, all or none."""
        _lock(self.source.project_id)
        read = [(lines[0][0], incoming) for lines, incoming in piece if isinstance(incoming, Incoming)]
        digests = {line: hash_incoming(incoming) for line, incoming in read}
        known = set() if self.source.is_again else self._find_known(digests)
        here = set() if self.source.is_again else self._find_originals(read, digests)
        fresh = [(line, one) for line, one in read if digests[line] not in known and line not in here]
        problems = [incoming for _, incoming in piece if isinstance(incoming, BadLine)]
        self._report(problems)
        self._write(fresh, digests)
        source = self.source
        advance_job(
            source,
            cursor=(source.cursor or 0) + len(piece),
            n_refused=source.n_refused + len(problems),
            n_known=source.n_known + len(read) - len(fresh),
            n_imported=source.n_imported + len(fresh),
        )

    def _report(self, problems: list[BadLine]) -> None:
        """Keep bad lines, as many as anybody will read."""
        kept = problems[: max(MAX_PROBLEMS - self._n_told, 0)]
        self._n_told += len(problems)
        ImportProblem.objects.bulk_create(
            [ImportProblem(source=self.source, line=problem.line, reason=_clean(problem.reason)) for problem in kept],
            batch_size=1000,
        )

    def _find_known(self, digests: Mapping[int, str]) -> set[str]:
        """Return those of the digests whose content the project has from another import."""
        others = ImportedTrajectory.objects.filter(project=self.source.project_id).exclude(source=self.source)
        found = others.filter(digest__in=set(digests.values()), trajectory__deleted_at=None)
        return set(found.values_list("digest", flat=True))

    def _find_originals(self, read: Sequence[tuple[int, Incoming]], digests: Mapping[int, str]) -> set[int]:
        """Return the first lines of those that the project has where they were exported from."""
        named = {line: one for line, one in read if is_id(one.source_id, "traj")}
        rows = Trajectory.objects.of_project(self.source.project)
        originals = rows.in_bulk({one.source_id for one in named.values()})
        return {
            line
            for line, one in named.items()
            if one.source_id in originals and _hash_original(originals[one.source_id], one) == digests[line]
        }

    def _write(self, fresh: Sequence[tuple[int, Incoming]], digests: Mapping[int, str]) -> None:
        """`fresh` has each with its first line."""
        made = write_trajectories(self._target, [incoming for _, incoming in fresh])
        names = self._name_contents([line for line, _ in fresh], digests)
        ImportedTrajectory.objects.bulk_create(
            ImportedTrajectory(
                source=self.source, project_id=self.source.project_id, digest=digest, trajectory=trajectory
            )
            for digest, (trajectory, _) in zip(names, made, strict=True)
        )
        given = [
            Rewarded(trajectory=trajectory, reward=incoming.reward, step_rewards=_pair_rewards(steps, incoming))
            for (_, incoming), (trajectory, steps) in zip(fresh, made, strict=True)
        ]
        self._reward(given, note=f"imported from {self.source.file_name} ({self.source.pk})")
        self._join_dataset([trajectory for trajectory, _ in made])

    def _name_contents(self, lines: Sequence[int], digests: Mapping[int, str]) -> list[str]:
        """Return the digests to remember: twice in one file is two, and the first stands for both."""
        own = ImportedTrajectory.objects.filter(source=self.source, digest__in=[digests[line] for line in lines])
        taken = set(own.values_list("digest", flat=True))
        names = []
        for line in lines:
            digest = digests[line]
            names.append(hashlib.sha256(f"{digest} {line}".encode()).hexdigest() if digest in taken else digest)
            taken.add(digest)
        return names

    def _join_dataset(self, trajectories: Sequence[Trajectory]) -> None:
        if self.source.dataset_id is None:
            return
        DatasetMember.objects.bulk_create(
            DatasetMember(
                dataset_id=self.source.dataset_id,
                trajectory=trajectory,
                added_how=AddedBy.IMPORT,
                added_by=self.source.created_by,
            )
            for trajectory in trajectories
        )


def _cut(groups: Iterator[Group]) -> Iterator[list[Group]]:
    while piece := list(islice(groups, PIECE)):
        yield piece


def _hash_original(original: Trajectory, incoming: Incoming) -> str:
    """Return the digest of what the pool has, in the shape in which it came."""
    render = render_tokens if incoming.steps[0].prompt_ids else render_conversations
    rows = list(enumerate(render(Source(trajectory=original)), start=1))
    return hash_incoming(READERS[RowFormat.CLAW].read(rows)) if rows else ""


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
