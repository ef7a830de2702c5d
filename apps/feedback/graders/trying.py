"""Dry runs: a version grades a sample and writes no label. People see what it would have said beside what they said."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.db.models import Exists, OuterRef
from django.utils import timezone

from apps.accounts.access import Caller
from apps.core.errors import ServiceError
from apps.core.live import publish_news
from apps.feedback.graders.agreement import measure_agreement
from apps.feedback.graders.alive import kept_alive
from apps.feedback.graders.grades import Grade
from apps.feedback.graders.grading import (
    Graded,
    GradingRound,
    as_said,
    find_tries,
    open_round,
    read_group,
    read_ungraded,
)
from apps.feedback.graders.judging import render_words
from apps.feedback.graders.kinds import Kind
from apps.feedback.graders.models import DryRun, GraderVersion, WorkState
from apps.feedback.graders.people import Target, compare, read_people, read_said
from apps.feedback.graders.subjects import Subject
from apps.feedback.models import Label, Source
from apps.trajectories.blindness import Hidden, find_hidden
from apps.trajectories.messages import clean_text
from apps.trajectories.models import Trajectory, TrajectoryState
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching

MAX_RESULTS = 200
SHOWN_TEXT = 500
MAX_SAID = 10  # of one thing
NO_TRAJECTORY = "no complete trajectory fits its query: nothing could be tried"
NO_GROUP = "no complete trajectory that fits its query is one of a group: nothing could be compared"
NO_ANSWER = "no complete trajectory that fits its query has an answer: nothing could be tried"
NO_FOLLOWING = "no complete trajectory that fits its query has a second step: nothing came after an answer"


def run_dry_run(dry_run_id: str) -> None:
    """Grade the sample and keep what came out. One that has ended, or that another worker is at, is left alone."""
    rows = DryRun.objects.filter(pk=dry_run_id)
    if rows.filter(state=WorkState.QUEUED).update(state=WorkState.RUNNING, touched_at=timezone.now()) != 1:
        return
    dry_run = DryRun.objects.select_related("version__grader__project__team", "author").get(pk=dry_run_id)
    try:
        with kept_alive(lambda: rows.update(touched_at=timezone.now())):
            columns = _try(dry_run)
    except ServiceError as error:
        columns = {"state": WorkState.FAILED, "error": error.message}
    under_way = rows.filter(state__in=[WorkState.QUEUED, WorkState.RUNNING])  # else another worker has ended it
    under_way.update(ended_at=timezone.now(), **columns)
    grader = dry_run.version.grader
    publish_news(grader.project_id, kind="grader", object_id=grader.pk)


def _try(dry_run: DryRun) -> dict[str, Any]:
    version = dry_run.version
    grading_round = open_round(version)
    hidden = find_hidden(Caller(user=dry_run.author))
    sample = choose_sample(version, kind=grading_round.kind, n_wanted=dry_run.n_wanted, hidden=hidden)
    if not sample:
        return {"state": WorkState.FAILED, "error": _tell_nothing(grading_round.kind)}
    graded = _grade_sample(grading_round, sample)[:MAX_RESULTS]
    if not graded:
        return {"state": WorkState.FAILED, "error": NO_ANSWER}
    ids = [row.pk for row in sample]
    people = read_people(project_id=version.grader.project_id, field=version.field, trajectory_ids=ids)
    said = read_said(project_id=version.grader.project_id, field=version.field, trajectory_ids=ids)
    results = [_show(one, grading_round, people=people, said=said) for one in graded]
    own = {
        (result["trajectory"], result["step"]): result["reward"] for result in results if result["reward"] is not None
    }
    agreement = asdict(compare(own, people)) if people else {}
    fault = _find_fault(graded)
    state = WorkState.FAILED if fault else WorkState.DONE
    return {"state": state, "results": results, "agreement": agreement, "error": fault}


def _tell_nothing(kind: Kind) -> str:
    if kind.is_group:
        return NO_GROUP
    return NO_FOLLOWING if kind.needs_following else NO_TRAJECTORY


def _find_fault(graded: Sequence[Graded]) -> str:
    """Return why nothing of the sample could be graded: then the version is not tried. "" when some of it was."""
    if any(isinstance(one.outcome, Grade) for one in graded):
        return ""
    [(why, n)] = Counter(one.outcome.why for one in graded if not isinstance(one.outcome, Grade)).most_common(1)
    return clean_text(f"none of {len(graded)} could be graded, {'each' if n == len(graded) else n}: {why}"[:SHOWN_TEXT])


def hide_results(dry_run: DryRun, *, hidden: Hidden) -> DryRun:
    """Return the dry run as somebody may see it from whom the judgements of these trajectories are hidden now; its
    agreement is then over the others."""
    if hidden.isdisjoint(one["trajectory"] for one in dry_run.results):
        return dry_run
    unseen: dict[str, Any] = {"value": None, "reward": None, "people": None, "people_said": [], "text": "", "hint": ""}
    dry_run.results = [one | unseen if one["trajectory"] in hidden else one for one in dry_run.results]
    both = [(one["reward"], one["people"]) for one in dry_run.results if None not in (one["reward"], one["people"])]
    dry_run.agreement = asdict(measure_agreement(both)) if both else {}
    return dry_run


def choose_sample(version: GraderVersion, *, kind: Kind, n_wanted: int, hidden: Hidden) -> list[Trajectory]:
    """Return complete trajectories that the version's query finds for who may not know of `hidden`, the newest: first
    such as people judged, half of them. Only such as the kind can say something of: tries of a group, more than one
    step."""
    project = version.grader.project
    rows = find_matching(project=project, query=parse_query(version.query), hidden=hidden).filter(
        state=TrajectoryState.COMPLETE, n_steps__gt=1 if kind.needs_following else 0
    )
    if kind.is_group:
        rows = rows.exclude(group="")
    judged = Label.objects.standing().filter(trajectory=OuterRef("pk"), source=Source.HUMAN, field=version.field)
    known = list(rows.filter(Exists(judged)).exclude(pk__in=hidden).order_by("-pk")[: (n_wanted + 1) // 2])
    others = rows.exclude(pk__in=[row.pk for row in known]).order_by("-pk")[: n_wanted - len(known)]
    return [*known, *others]


def _grade_sample(grading_round: GradingRound, sample: Sequence[Trajectory]) -> list[Graded]:
    if grading_round.kind.is_group:
        return _grade_groups(grading_round, sample)
    is_by_step = grading_round.kind.is_by_step(grading_round.job.settings)
    subjects: list[Subject] = []
    for row in sample:
        subjects += read_ungraded(row, is_by_step=is_by_step, known=())
        if len(subjects) >= MAX_RESULTS:
            break
    return grading_round.grade(subjects[:MAX_RESULTS])


def _grade_groups(grading_round: GradingRound, sample: Sequence[Trajectory]) -> list[Graded]:
    graded: list[Graded] = []
    seen: set[str] = set()
    for row in sample:
        if row.group and row.group not in seen:
            seen.add(row.group)
            graded += grading_round.grade_group(read_group(find_tries(row, most=grading_round.job.settings.most)))
    return graded


def _show(
    graded: Graded,
    grading_round: GradingRound,
    *,
    people: Mapping[Target, float],
    said: Mapping[Target, Sequence[Any]],
) -> dict[str, Any]:
    subject, outcome, field = graded.subject, graded.outcome, grading_round.job.field
    target = subject.trajectory.pk, subject.step_id
    shown: dict[str, Any] = {
        "trajectory": subject.trajectory.pk,
        "title": subject.trajectory.title[:SHOWN_TEXT],
        "group": subject.trajectory.group if grading_round.kind.is_group else "",
        "step": subject.step_id,
        "answer": clean_text(render_words(subject.answer)[:SHOWN_TEXT]),
        "value": None,
        "reward": None,
        "text": "",
        "hint": "",
        "problem": "",
        "people": people.get(target),
        "people_said": list(said.get(target, ())[:MAX_SAID]),
    }
    if not isinstance(outcome, Grade):
        return {**shown, "problem": clean_text(outcome.why[:SHOWN_TEXT])}
    own = as_said(field, outcome.value)
    worth = field.reward_of(field.read(own))
    words = {"text": outcome.text[:SHOWN_TEXT], "hint": outcome.hint[:SHOWN_TEXT]}
    return {**shown, **words, "value": own, "reward": worth}
