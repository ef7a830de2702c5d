"""The work of graders in the background: what is due is claimed, graded, and written, each trajectory in a transaction
of its own. Whoever dies in between loses nothing: a claim that grows old is taken up again, and labels and the row that
says "done" are written together. Who was only cut off, and comes back after that, changes nothing. Failures are tried
again, later each time, and at last left with their reason.
"""

import hashlib
from collections.abc import Sequence
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Exists, F, OuterRef, QuerySet
from django.utils import timezone

from apps.core.errors import ServiceError
from apps.core.live import publish_news
from apps.feedback.graders.alive import LOST_AFTER, kept_alive
from apps.feedback.graders.grades import Failure, Grade, NoGrade
from apps.feedback.graders.grading import (
    Graded,
    GradingRound,
    as_said,
    find_tries,
    nothing_to_grade,
    open_round,
    read_group,
    read_ungraded,
)
from apps.feedback.graders.kinds import KINDS
from apps.feedback.graders.models import TAKEN_BACK, Grader, GraderVersion, Grading, GradingState
from apps.feedback.graders.subjects import Subject
from apps.feedback.models import Label
from apps.feedback.score_schema import HINT_FIELD
from apps.feedback.services import Answer, Author, write_answers
from apps.trajectories.messages import clean_text
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching, patience

log = structlog.get_logger(__name__)

MAX_TRIES = 4
FIRST_WAIT = timedelta(seconds=30)  # then four times as long each time
UNSETTLED_WAIT = timedelta(seconds=20)
SLACK = timedelta(seconds=60)  # between the moment in a row and its commit
LINED_UP_AT_ONCE = 500
CLAIMED_AT_ONCE = 16
SHOWN = 500


def is_sampled(version: GraderVersion, trajectory_id: str) -> bool:
    """Say whether the version's sample holds the trajectory: always the same answer."""
    digest = hashlib.blake2b(f"{version.pk}:{trajectory_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < version.sample * 2**64


def line_up(version: GraderVersion, trajectory_ids: Sequence[str], *, backfill_id: str | None = None) -> int:
    """Have the version grade these trajectories, but those that it looked at already; returns how many were new."""
    rows = []
    for trajectory_id in trajectory_ids:
        row = Grading(version=version, trajectory_id=trajectory_id, backfill_id=backfill_id)
        if not is_sampled(version, trajectory_id):
            row.state, row.error = GradingState.SKIPPED, "not in the sample"
        rows.append(row)
    before = Grading.objects.filter(version=version, trajectory__in=list(trajectory_ids)).count()
    Grading.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows) - before


def line_up_finished(grader: Grader) -> int:
    """Line up what has been completed since the grader was switched on, or since the last look; returns how many."""
    version, since = grader.live, grader.seen_until or grader.switched_on_at
    if version is None or since is None:
        return 0
    version.grader = grader
    now = timezone.now()
    known = Grading.objects.filter(version=version, trajectory=OuterRef("pk"))
    rows = find_matching(project=grader.project, query=parse_query(version.query)).filter(
        ~Exists(known), state=TrajectoryState.COMPLETE, completed_at__gte=since, n_steps__gt=0
    )
    with patience():
        found = list(rows.order_by("completed_at")[:LINED_UP_AT_ONCE])
    n_new = line_up(version, [row.pk for row in found])
    seen = (found[-1].completed_at if len(found) == LINED_UP_AT_ONCE else None) or now - SLACK
    Grader.objects.filter(pk=grader.pk, live=version).update(seen_until=max(seen, since))
    return n_new


def release_old_claims() -> int:
    """Let others take up what a worker claimed and did not finish; returns how many."""
    now = timezone.now()
    old = Grading.objects.filter(state=GradingState.RUNNING, claimed_at__lt=now - LOST_AFTER)
    given_up = {"state": GradingState.FAILED, "error": "its worker ended each time", "ended_at": now}
    old.filter(n_tries__gte=MAX_TRIES).update(claimed_at=None, **given_up)
    return old.update(state=GradingState.WAITING, claimed_at=None)


def grade_due(version_id: str) -> bool:
    """Grade some of what waits for the version; False when nothing did. Doing it twice at once is fine."""
    version = GraderVersion.objects.select_related("grader__project__team").filter(pk=version_id).first()
    claimed = _claim(version) if version is not None else []
    if version is None or not claimed:
        return False
    try:
        grading_round = open_round(version)
    except ServiceError as error:
        for row in claimed:
            _finish(row, Failure(why=error.message, is_final=True), n_calls=0)
        return True
    grade = _grade_groups if grading_round.kind.is_group else _grade_each
    with kept_alive(lambda: _renew(claimed)):
        grade(grading_round, claimed)
    publish_news(version.grader.project_id, kind="grader", object_id=version.grader_id)
    return True


def _claim(version: GraderVersion) -> list[Grading]:
    now = timezone.now()
    with transaction.atomic():
        due = Grading.objects.filter(version=version, state=GradingState.WAITING, due_at__lte=now).order_by("due_at")
        ids = list(due.select_for_update(skip_locked=True).values_list("pk", flat=True)[:CLAIMED_AT_ONCE])
        Grading.objects.filter(pk__in=ids).update(state=GradingState.RUNNING, claimed_at=now, n_tries=F("n_tries") + 1)
    rows = Grading.objects.filter(pk__in=ids).select_related("trajectory__project__team", "trajectory__agent")
    claimed = list(rows.order_by("pk"))
    settled = Trajectory.objects.settled().filter(pk__in=[row.trajectory_id for row in claimed])
    settled_ids = set(settled.values_list("pk", flat=True))
    return [row for row in claimed if _is_ready(row, is_settled=row.trajectory_id in settled_ids)]


def _is_ready(row: Grading, *, is_settled: bool) -> bool:
    """Say whether the trajectory is there, and whole; one whose last call is still to be folded waits a little."""
    if row.trajectory.deleted_at is not None:
        _finish(row, NoGrade(why="it was deleted"), n_calls=0)
        return False
    if not is_settled:
        _put_back(row, until=timezone.now() + UNSETTLED_WAIT, why="its last call is still to be put in")
        return False
    return True


def _renew(claimed: Sequence[Grading]) -> None:
    """A sign of life: nobody else takes these up."""
    for row in claimed:
        _as_read(row).update(claimed_at=timezone.now())


def _as_read(row: Grading) -> QuerySet[Grading]:
    """The row, unless another worker took it up meanwhile: each claim counts a try."""
    return Grading.objects.filter(pk=row.pk, state=row.state, n_tries=row.n_tries)


def _put_back(row: Grading, *, until: object, why: str) -> None:
    _as_read(row).update(state=GradingState.WAITING, due_at=until, claimed_at=None, error=why, n_tries=F("n_tries") - 1)


def _grade_each(grading_round: GradingRound, claimed: Sequence[Grading]) -> None:
    known = _find_known(grading_round.version, claimed)
    is_by_step = grading_round.kind.is_by_step(grading_round.job.settings)
    subjects: list[Subject] = []
    for row in claimed:
        subjects += read_ungraded(row.trajectory, is_by_step=is_by_step, known=known.get(row.trajectory_id, set()))
    by_trajectory: dict[str, list[Graded]] = {row.trajectory_id: [] for row in claimed}
    for graded in grading_round.grade(subjects):
        by_trajectory[graded.subject.trajectory.pk].append(graded)
    for row in claimed:
        _write(row, grading_round, by_trajectory[row.trajectory_id])


def _find_known(version: GraderVersion, claimed: Sequence[Grading]) -> dict[str, set[str | None]]:
    """Return by trajectory what the version has labelled already, in a try that failed in part."""
    known: dict[str, set[str | None]] = {}
    again = [row.trajectory_id for row in claimed if row.n_tries > 1]
    labels = Label.objects.standing().filter(grader=version, field=version.field, trajectory__in=again)
    for trajectory_id, step_id in labels.values_list("trajectory_id", "step_id"):
        known.setdefault(trajectory_id, set()).add(step_id)
    return known


def _grade_groups(grading_round: GradingRound, claimed: Sequence[Grading]) -> None:
    by_group: dict[str, list[Grading]] = {}
    for row in claimed:
        if not row.trajectory.group:
            _finish(row, NoGrade(why="it belongs to no group of tries"), n_calls=0)
        else:
            by_group.setdefault(row.trajectory.group, []).append(row)
    for rows in by_group.values():
        _grade_group(grading_round, rows)


def _grade_group(grading_round: GradingRound, rows: Sequence[Grading]) -> None:
    first = rows[0].trajectory
    others = Trajectory.objects.filter(project=first.project_id, group=first.group, deleted_at=None)
    if others.filter(state=TrajectoryState.OPEN).exists():
        for row in rows:
            _put_back(row, until=timezone.now() + FIRST_WAIT, why="another try of its group is still open")
        return
    tries = find_tries(first, most=grading_round.job.settings.most)
    by_trajectory = {graded.subject.trajectory.pk: graded for graded in grading_round.grade_group(read_group(tries))}
    line_up(grading_round.version, list(by_trajectory))  # a try that nothing had lined up is graded with the others
    members = Grading.objects.filter(version=grading_round.version, trajectory__in=list(by_trajectory))
    members = members.exclude(state=GradingState.SKIPPED, error=TAKEN_BACK)
    claimed = {row.trajectory_id: row for row in rows}
    for row in members.select_related("trajectory"):
        _write(claimed.pop(row.trajectory_id, row), grading_round, [by_trajectory[row.trajectory_id]])
    for row in claimed.values():  # more tries than fit into one question: they are asked about in the next
        _put_back(row, until=timezone.now(), why="it is compared in the next question")


def _write(row: Grading, grading_round: GradingRound, graded: Sequence[Graded]) -> None:
    """Write the labels, and what became of the trajectory, together."""
    n_calls = sum(one.outcome.n_calls for one in graded)
    answers = _read_answers(graded, grading_round)
    version = grading_round.version
    with transaction.atomic():
        if answers:
            author = Author(source=grading_round.kind.source, grader=version)
            write_answers(author=author, trajectory=row.trajectory, answers=answers)
        if not _finish(row, _sum_up(graded), n_calls=n_calls):
            transaction.set_rollback(True)


def _read_answers(graded: Sequence[Graded], grading_round: GradingRound) -> list[Answer]:
    """Return what is to be said of one trajectory."""
    ids = [one.subject.step_id for one in graded if one.subject.step_id is not None]
    trajectory = graded[0].subject.trajectory if ids else None
    rows = Step.objects.filter(trajectory=trajectory, pk__in=ids).only("id", "trajectory_id")
    steps = {step.pk: step for step in rows} if ids else {}
    answers = []
    for one in graded:
        grade, step = one.outcome, steps.get(one.subject.step_id or "")
        if not isinstance(grade, Grade):
            continue
        value = as_said(grading_round.job.field, grade.value)
        answers.append(Answer(field=grading_round.version.field, value=value, text=grade.text, step=step))
        if grade.hint and step is not None:
            answers.append(Answer(field=HINT_FIELD, text=grade.hint, step=step))
    return answers


def _sum_up(graded: Sequence[Graded]) -> Grade | NoGrade | Failure:
    """Return what to say of a trajectory: the failure that is worth another try, else that it was graded."""
    failures = [one.outcome for one in graded if isinstance(one.outcome, Failure)]
    if failures:
        return max(failures, key=lambda failure: (not failure.is_final, failure.not_before is not None))
    grade = next((one.outcome for one in graded if isinstance(one.outcome, Grade)), None)
    nothing = next((one.outcome for one in graded if isinstance(one.outcome, NoGrade)), None)
    return grade or nothing or nothing_to_grade()


def _finish(row: Grading, outcome: Grade | NoGrade | Failure, *, n_calls: int) -> bool:
    """Write what became of the row; False, and nothing written, when another worker took it up meanwhile."""
    now = timezone.now()
    columns: dict[str, object] = {"n_calls": F("n_calls") + n_calls, "claimed_at": None, "ended_at": now}
    if isinstance(outcome, Grade):
        columns |= {"state": GradingState.DONE, "error": ""}
    elif isinstance(outcome, NoGrade):
        columns |= {"state": GradingState.SKIPPED, "error": clean_text(outcome.why[:SHOWN])}
    elif outcome.not_before is not None:
        columns |= {"state": GradingState.WAITING, "error": clean_text(outcome.why[:SHOWN])}
        columns |= {"due_at": outcome.not_before, "n_tries": F("n_tries") - 1}
    elif outcome.is_final or row.n_tries >= MAX_TRIES:
        columns |= {"state": GradingState.FAILED, "error": clean_text(outcome.why[:SHOWN])}
    else:
        wait = max(FIRST_WAIT * 4 ** (row.n_tries - 1), timedelta(seconds=outcome.retry_after_s))
        columns |= {"state": GradingState.WAITING, "error": clean_text(outcome.why[:SHOWN]), "due_at": now + wait}
    if _as_read(row).update(**columns) != 1:
        log.warning("grading.too_late", version=row.version_id, trajectory=row.trajectory_id)
        return False
    if columns["state"] == GradingState.FAILED:
        log.warning("grading.failed", version=row.version_id, trajectory=row.trajectory_id, why=columns["error"])
    return True


def list_switched_on() -> list[Grader]:
    """Return the graders that grade by themselves."""
    rows = Grader.objects.exclude(live=None).select_related("live", "project__team")
    return [grader for grader in rows if grader.kind in KINDS]
