"""Grades trajectories by a version and says what came out: nothing is written here. Labels are `running.py`'s, dry runs
`trying.py`'s.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from apps.core.counted import count_of
from apps.core.errors import InvalidInput
from apps.feedback.graders.budget import next_day, reserve_calls, settle_calls
from apps.feedback.graders.grades import Failure, Grade, NoGrade, Outcome
from apps.feedback.graders.kinds import Job, Kind, find_kind, read_settings
from apps.feedback.graders.models import GraderVersion
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


@dataclass(frozen=True, kw_only=True)
class GradingRound:
    """One version at work, within its grader's budget of the day."""

    version: GraderVersion
    kind: Kind
    job: Job

    def grade(self, subjects: Sequence[Subject]) -> list[Graded]:
        """Grade the subjects batch by batch; those that the budget does not reach wait for tomorrow."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(subjects):
            batch = subjects[len(outcomes) : len(outcomes) + self.kind.batch]
            found = self._grade_affordable(batch, n_questions=len(batch))
            if not found:
                break
            outcomes += found
        return self._pair(subjects, outcomes)

    def grade_group(self, subjects: Sequence[Subject]) -> list[Graded]:
        """Grade the tries of one group together, in one question."""
        return self._pair(subjects, self._grade_affordable(subjects, n_questions=1))

    def _grade_affordable(self, batch: Sequence[Subject], *, n_questions: int) -> list[Outcome]:
        """Return the outcomes of as many of the batch's questions, from the first on, as today's budget pays for."""
        each = self.kind.n_calls(self.job.settings)
        budget: int | None = getattr(self.job.settings, "calls_per_day", None)
        if budget is None or not each:
            return self.kind.grade(self.job, batch)
        reserved = reserve_calls(self.version.grader_id, budget=budget, each=each, n_questions=n_questions)
        n_paid = reserved.n_calls // each
        affordable = batch if n_paid == n_questions else batch[:n_paid]
        outcomes = self.kind.grade(self.job, affordable) if affordable else []
        settle_calls(reserved, n_made=sum(outcome.n_calls for outcome in outcomes))
        return outcomes

    def _pair(self, subjects: Sequence[Subject], outcomes: Sequence[Outcome]) -> list[Graded]:
        """Return each subject with its outcome; those after the last outcome wait."""
        waiting = [self._wait_for_tomorrow() for _ in subjects[len(outcomes) :]]
        pairs = zip(subjects, [*outcomes, *waiting], strict=True)
        return [Graded(subject=subject, outcome=self._check(outcome)) for subject, outcome in pairs]

    def _wait_for_tomorrow(self) -> Failure:
        budget = self.job.settings.calls_per_day
        return Failure(why=f"today's budget of {count_of(budget, 'call')} is spent", not_before=next_day())

    def _check(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or as a failure a value that the field does not take."""
        if not isinstance(outcome, Grade):
            return outcome
        try:
            self.job.field.read(as_said(self.job.field, outcome.value))
        except InvalidInput as error:
            said = str(outcome.value).lower() if isinstance(outcome.value, bool) else f"{outcome.value:g}"
            why = f"it said {said}: {error.message}"
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
    return GradingRound(version=version, kind=kind, job=job)


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
