"""The steps that a batch of calls may go on from: those of the pool, read in one go, and those that the batch makes.

What the batch makes is written at its end, in one go too. Good for one transaction.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from apps.trajectories.copying import copy_rows
from apps.trajectories.models import SideCall, Step, Trajectory
from apps.trajectories.querysets import StepQuerySet
from apps.trajectories.search.words import keep_words
from apps.trajectories.sessions import is_open_at

MAX_CANDIDATES = 20  # older ones with the same short answer are not worth the reads
_MAX_READ_AHEAD = 1000


@dataclass(frozen=True, kw_only=True)
class Among:
    """Which steps are meant: those of one trajectory, or of all that a call which ended then may go on with."""

    trajectory_id: str | None = None
    open_at: datetime | None = None

    def narrow(self, rows: StepQuerySet) -> StepQuerySet:
        """Return those of the rows that are meant."""
        if self.trajectory_id is not None:
            rows = rows.filter(trajectory_id=self.trajectory_id)
        return rows if self.open_at is None else rows.in_trajectories_open_at(self.open_at)

    def has(self, step: Step) -> bool:
        """Say whether the step is meant."""
        if self.trajectory_id is not None and step.trajectory_id != self.trajectory_id:
            return False
        return self.open_at is None or is_open_at(completed_at=step.trajectory.completed_at, moment=self.open_at)


class KnownSteps:
    """Finds steps by their digests. `write` must be called at the transaction's end."""

    def __init__(self) -> None:
        self._by_digest: dict[str, dict[str, Step]] = defaultdict(dict)
        self._read: set[str] = set()
        self._gone_on_from: set[str] = set()
        self._trajectories: list[Trajectory] = []
        self._steps: list[Step] = []

    def read_ahead(self, digests: Iterable[str]) -> list[Step]:
        """Read all steps that have any of the digests, unless they are too many; returns them."""
        wanted = set(digests) - self._read
        rows = list(Step.objects.found_by(list(wanted)).for_placing()[:_MAX_READ_AHEAD]) if wanted else []
        if len(rows) == _MAX_READ_AHEAD:
            return []
        self._read |= wanted
        for row in rows:
            for digest in wanted.intersection(row.answer_digests):
                self._by_digest[digest][row.id] = row
        return rows

    def find(self, digests: Sequence[str], *, among: Among) -> list[Step]:
        """Return the steps that have any of the digests, leaves first, then the latest; at most MAX_CANDIDATES."""
        found = {step_id: step for digest in digests for step_id, step in self._by_digest.get(digest, {}).items()}
        if not self._read.issuperset(digests):
            rows = among.narrow(Step.objects.found_by(digests)).for_placing()[:MAX_CANDIDATES]
            found |= {row.id: row for row in rows}
        meant = [step for step in found.values() if among.has(step)]
        return sorted(meant, key=self._rank, reverse=True)[:MAX_CANDIDATES]

    def find_by_response(self, response_id: str, *, among: Among, key_id: str | None = None) -> Step | None:
        """Return the latest step of an answer that we gave; with `key_id`, in a trajectory of that key."""
        waiting = [step for step in self._steps if step.response_id == response_id and among.has(step)]
        if waiting:
            return waiting[-1] if key_id in (None, waiting[-1].trajectory.key_id) else None
        rows = among.narrow(Step.objects.filter(response_id=response_id))
        return (rows.filter(trajectory__key=key_id) if key_id else rows).for_placing().first()

    def is_leaf(self, step: Step) -> bool:
        """Say whether no step of the main chain goes on from it, as far as is known here."""
        return getattr(step, "is_leaf", True) and step.id not in self._gone_on_from

    def _rank(self, step: Step) -> tuple[bool, datetime, str]:
        return self.is_leaf(step), step.started_at, step.id

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Take a trajectory that nobody else knows yet."""
        self._trajectories.append(trajectory)

    def add(self, steps: Sequence[Step]) -> None:
        """Take steps that are not written yet."""
        self._steps += steps
        for step in steps:
            for digest in step.answer_digests:
                self._by_digest[digest][step.id] = step
            if step.parent_id and step.side_call == SideCall.NONE:
                self._gone_on_from.add(step.parent_id)

    def find_unwritten(self, step_id: str) -> Step | None:
        """Return the step if it waits to be written."""
        return next((step for step in self._steps if step.id == step_id), None)

    def exclude(self, step_id: str) -> bool:
        """Keep a step out of training, wherever it is known here; says whether that will be written."""
        for steps in self._by_digest.values():
            if step_id in steps:
                steps[step_id].is_excluded = True
        waiting = self.find_unwritten(step_id)
        if waiting is not None:
            waiting.is_excluded = True
        return waiting is not None

    def write(self) -> list[Trajectory]:
        """Write what waits for it; returns the trajectories that are new by this."""
        trajectories, self._trajectories = self._trajectories, []
        steps, self._steps = self._steps, []
        copy_rows(trajectories)
        copy_rows(steps)
        keep_words(steps)
        return trajectories
