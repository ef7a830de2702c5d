"""Grades trajectories by a version and says what came out: nothing is written here. Labels are `running.py`'s, dry runs
`trying.py`'s.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.db.models import Sum
from django.utils import timezone

from apps.core.errors import InvalidInput
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.kinds import Job, Kind, find_kind, read_settings
from apps.feedback.graders.models import GraderVersion, Grading
from apps.feedback.graders.subjects import Subject, read_subjects
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import FieldKind, FieldSpec
from apps.registry.credentials import unseal_credential
from apps.trajectories.models import Trajectory, TrajectoryState


@dataclass(frozen=True, kw_only=True)
class Graded:
    """One subject and what came out."""

    subject: Subject
    outcome: Outcome


@dataclass(kw_only=True)
class GradingRound:
    """One version at work, with what is left of the day's budget."""

    version: GraderVersion
    kind: Kind
    job: Job
    n_calls_left: int | None

    def grade(self, subjects: Sequence[Subject]) -> list[Graded]:
        """Grade the subjects batch by batch; those that the budget does not reach wait for tomorrow."""
        graded: list[Graded] = []
        for start in range(0, len(subjects), self.kind.batch):
            batch = subjects[start : start + self.kind.batch]
            affordable = batch[: self._affordable(len(batch))]
            outcomes = self.kind.grade(self.job, affordable) if affordable else []
            outcomes += [self._wait_for_tomorrow() for _ in batch[len(affordable) :]]
            self._spend(outcomes)
            graded += [
                Graded(subject=subject, outcome=self._check(outcome))
                for subject, outcome in zip(batch, outcomes, strict=True)
            ]
        return graded

    def grade_group(self, subjects: Sequence[Subject]) -> list[Graded]:
        """Grade the tries of one group together."""
        if not self._affordable(1):
            outcomes: list[Outcome] = [self._wait_for_tomorrow() for _ in subjects]
        else:
            outcomes = self.kind.grade(self.job, subjects)
            self._spend(outcomes[:1])  # one question for all of them
        pairs = zip(subjects, outcomes, strict=True)
        return [Graded(subject=subject, outcome=self._check(outcome)) for subject, outcome in pairs]

    def _affordable(self, wanted: int) -> int:
        each = self.kind.n_calls(self.job.settings)
        if self.n_calls_left is None or not each:
            return wanted
        return min(wanted, self.n_calls_left // each)

    def _spend(self, outcomes: Sequence[Outcome]) -> None:
        if self.n_calls_left is not None:
            self.n_calls_left -= sum(outcome.n_calls for outcome in outcomes)

    def _wait_for_tomorrow(self) -> Failure:
        budget = self.job.settings.calls_per_day
        return Failure(why=f"today's budget of {budget} calls is spent", not_before=next_day())

    def _check(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or as a failure a value that the field does not take."""
        if not isinstance(outcome, Grade):
            return outcome
        try:
            self.job.field.read(as_said(self.job.field, outcome.value))
        except InvalidInput as error:
            why = f"it said {outcome.value:g}: {error.message}"
            return Failure(why=why, is_final=True, n_calls=outcome.n_calls)
        return outcome


def as_said(field: FieldSpec, value: float) -> float | bool:
    """Return a grader's value as an answer to the field: of yes or no, what is above 0 is yes."""
    return bool(value > 0) if field.kind == FieldKind.BINARY else value


def open_round(version: GraderVersion) -> GradingRound:
    """Return a version ready to grade. Raises InvalidInput when its field or its settings are no longer understood."""
    kind = find_kind(version.grader.kind)
    settings = read_settings(kind, version.settings)
    job = Job(
        project_id=version.grader.project_id,
        version=str(version),
        field=find_schema(version.grader.project_id).fields.find_field(version.field),
        settings=settings,
        secret=unseal_credential(version.grader.sealed_secret),
    )
    return GradingRound(version=version, kind=kind, job=job, n_calls_left=_count_calls_left(version, settings))


def _count_calls_left(version: GraderVersion, settings: Any) -> int | None:
    budget: int | None = getattr(settings, "calls_per_day", None)
    if budget is None:
        return None
    today = Grading.objects.filter(version=version, ended_at__gte=next_day() - timedelta(days=1))
    return max(0, budget - (today.aggregate(spent=Sum("n_calls"))["spent"] or 0))


def next_day() -> datetime:
    """Return when the next UTC day begins."""
    tomorrow = timezone.now().astimezone(UTC).date() + timedelta(days=1)
    return datetime.combine(tomorrow, time(), tzinfo=UTC)


def find_tries(trajectory: Trajectory, *, most: int) -> list[Trajectory]:
    """Return the whole tries of the trajectory's group, itself among them, the oldest first."""
    rows = Trajectory.objects.filter(
        project=trajectory.project_id, group=trajectory.group, state=TrajectoryState.COMPLETE, deleted_at=None
    )
    others = rows.filter(n_steps__gt=0).exclude(pk=trajectory.pk).order_by("-pk")[: most - 1]
    return sorted([trajectory, *others], key=lambda row: row.pk)


def read_group(trajectories: Sequence[Trajectory]) -> list[Subject]:
    """Return the end of each try that has one."""
    return [subject for row in trajectories for subject in read_subjects(row, is_by_step=False)]


def read_ungraded(trajectory: Trajectory, *, is_by_step: bool, known: Collection[str | None]) -> list[Subject]:
    """Return the trajectory's subjects but those of the steps (None: the whole) that are graded already."""
    subjects = read_subjects(trajectory, is_by_step=is_by_step)
    return [subject for subject in subjects if subject.step_id not in known]


def nothing_to_grade() -> NoGrade:
    """Return what there is to say of a trajectory without a whole answer in its main line."""
    return NoGrade(why="it has no whole answer in its main line")
