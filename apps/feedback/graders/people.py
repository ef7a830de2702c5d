"""What people said of the things that a grader grades, and how far it agrees with them."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from apps.feedback.graders.agreement import Agreement, measure_agreement
from apps.feedback.graders.models import GraderVersion
from apps.feedback.models import Label, LabelQuerySet, Source
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import Schema
from apps.trajectories.blindness import NOTHING, Hidden

COMPARED = 2000

Target = tuple[str, str | None]  # a trajectory's id, and a step's or None


def read_people(*, project_id: str, field: str, trajectory_ids: Sequence[str]) -> dict[Target, float]:
    """Return by target what people's standing labels in the field are worth in the mean, -1 to 1."""
    labels = _find_labels(project_id=project_id, field=field, trajectory_ids=trajectory_ids)
    return _join(labels, find_schema(project_id).fields)


def read_said(*, project_id: str, field: str, trajectory_ids: Sequence[str]) -> dict[Target, list[Any]]:
    """Return by target what people's standing labels in the field say, as they said it."""
    said: dict[Target, list[Any]] = {}
    labels = _find_labels(project_id=project_id, field=field, trajectory_ids=trajectory_ids).order_by("pk")
    for label in labels.only("trajectory_id", "step_id", "value", "said"):
        value = label.value if label.said is None else label.said
        if value is not None:
            said.setdefault((label.trajectory_id, label.step_id), []).append(value)
    return said


def _find_labels(*, project_id: str, field: str, trajectory_ids: Sequence[str]) -> LabelQuerySet:
    return Label.objects.standing().filter(
        project=project_id, source=Source.HUMAN, field=field, trajectory__in=list(trajectory_ids), span_start=None
    )


def _join(labels: LabelQuerySet, schema: Schema) -> dict[Target, float]:
    worths: dict[Target, list[float]] = {}
    for label in labels.only("trajectory_id", "step_id", "field", "value", "said"):
        worth = schema.reward_of(field=label.field, value=label.value, said=label.said)
        if worth is not None:
            worths.setdefault((label.trajectory_id, label.step_id), []).append(worth)
    return {target: mean(values) for target, values in worths.items()}


def compare(own: Mapping[Target, float], people: Mapping[Target, float]) -> Agreement:
    """Return how far a grader and people agree on what both judged."""
    both: Iterable[Target] = own.keys() & people.keys()
    return measure_agreement([(own[target], people[target]) for target in sorted(both, key=str)])


def read_agreement(version: GraderVersion, *, hidden: Hidden = NOTHING) -> Agreement:
    """Return how far the version's standing labels and people's agree, over its newest; of `hidden` none counts."""
    project_id = version.grader.project_id
    labels = Label.objects.standing().filter(grader=version, field=version.field).exclude(trajectory__in=hidden)
    newest = labels.order_by("-pk")[:COMPARED]
    own = _join(Label.objects.filter(pk__in=newest.values("pk")), find_schema(project_id).fields)
    people = read_people(project_id=project_id, field=version.field, trajectory_ids=list({target[0] for target in own}))
    return compare(own, people)
