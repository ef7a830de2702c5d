"""Corrections, preferences and hints as rows of a file, by the names that trainers know them by; and the table of all
that an export's rows can say.

- preference: `prompt`, `chosen` and `rejected` as lists of messages. A correction is better than what was said.
- sft: `prompt`, and as `completion` what somebody wrote that the step should have said.
- hints: `prompt`, the step's own `completion`, and the `hint`: what it should have known. `reward` and
  `trajectory_reward` are what all that was said adds up to, whoever gave the hint: trainers add one to what it says.

Only what stands is written; of a snapshot, what stood when it was taken.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.core.errors import InvalidInput
from apps.feedback.models import Label
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.pairs import Spoken, read_pair, read_trajectory_pair
from apps.feedback.preferences.sides import answer_of
from apps.trajectories.blindness import Hidden
from apps.trajectories.datasets.models import Shape, Snapshot
from apps.trajectories.datasets.queries import list_latest
from apps.trajectories.datasets.rows import Row, Source, say_time
from apps.trajectories.datasets.shapes import POOL_SHAPES, RowShape
from apps.trajectories.models import Step
from apps.trajectories.trie import load_messages, load_tools

FORMATS = {
    Shape.PREFERENCE: "claw.preference.v1",
    Shape.SFT: "claw.sft.v1",
    Shape.HINTS: "claw.hints.v1",
}
_SIDES = ("step", "chosen_step", "rejected_step")

Rows = TypeVar("Rows", bound=QuerySet[Any])


def _find(source: Source, known: Rows, standing: Rows, *, shape: Shape) -> Rows:
    """Return what stands of the source's trajectory, or stood when it was pinned: what of that is not `known` any more
    is counted as left out."""
    if source.pinned is None:
        return standing.filter(trajectory=source.trajectory).order_by("pk")
    ids = source.pinned.judged.get(shape, ())
    found = known.filter(pk__in=ids, trajectory=source.trajectory)
    source.tally.n_left_out += len(ids) - found.count()
    return found.order_by("pk")


def _render_preferences(source: Source) -> Iterator[Row]:
    known = Preference.objects.undeleted()
    rows = _find(source, known, known.decided(), shape=Shape.PREFERENCE)
    for row in rows.outside(source.hidden).select_related(*_SIDES):
        sides = _read_answers(row) if row.step else _read_trajectories(row, source)
        if sides is None:
            source.tally.n_left_out += 1
            continue
        yield {
            **_render_head(source, row, row.step, shape=Shape.PREFERENCE),
            **sides,
            "kind": row.kind,
            "field": row.field,
            "ranking": row.ranking,
            "text": row.text,
            "rejected_trajectory": row.rejected_trajectory_id,
            "rejected_step": row.rejected_step_id,
        }


def _read_answers(row: Preference) -> Row:
    pair = read_pair(row)
    return {
        "prompt": pair.messages,
        "tools": pair.tools,
        "chosen": [pair.chosen.message],
        "rejected": [pair.rejected.message],
        "chosen_version": row.chosen_version_id or _version_of(pair.chosen),
        "rejected_version": row.rejected_version_id or _version_of(pair.rejected),
    }


def _version_of(spoken: Spoken) -> str | None:
    return spoken.step.version_id if spoken.step is not None else None


def _read_trajectories(row: Preference, source: Source) -> Row | None:
    pinned = source.pinned
    end, rejected_end = (pinned.end_index, pinned.judged["ends"][row.pk]) if pinned else (None, None)
    pair = read_trajectory_pair(row, end=end, rejected_end=rejected_end)
    if pair is None:
        return None
    sides = {"prompt": pair.messages, "tools": pair.tools, "chosen": pair.chosen, "rejected": pair.rejected}
    return {**sides, "chosen_version": None, "rejected_version": None}


def _render_corrections(source: Source) -> Iterator[Row]:
    known = Preference.objects.undeleted()
    rows = _find(source, known, known.corrections(), shape=Shape.SFT)
    for row in rows.outside(source.hidden).select_related(*_SIDES):
        pair = read_pair(row)
        yield {
            **_render_head(source, row, row.step, shape=Shape.SFT),
            "prompt": pair.messages,
            "tools": pair.tools,
            "completion": [pair.chosen.message],
            "text": row.text,
        }


def _render_hints(source: Source) -> Iterator[Row]:
    labels = Label.objects.all()
    for row in _find(source, labels, labels.hints(), shape=Shape.HINTS).select_related("step", "grader__grader"):
        assert row.step is not None  # noqa: S101 (of `hints`)
        yield {
            **_render_head(source, row, row.step, shape=Shape.HINTS),
            "prompt": load_messages(row.step.pk),
            "tools": load_tools(project_id=row.project_id, digest=row.step.tools_digest),
            "completion": [answer_of(row.step)],
            "hint": row.text,
            "reward": source.reward_of(row.step),
            "trajectory_reward": source.reward,
            "version": row.step.version_id,
            "grader": str(row.grader) if row.grader else "",
        }


def _render_head(source: Source, row: Preference | Label, step: Step | None, *, shape: Shape) -> Row:
    """What all of these shapes say: what was judged, by whom, when. Addresses of people stay here."""
    trajectory = source.trajectory
    return {
        "format": FORMATS[shape],
        "id": row.pk,
        "trajectory": trajectory.pk,
        "step": step.pk if step else None,
        "index": step.index if step else None,
        "agent": trajectory.agent.slug,
        "channel": trajectory.channel,
        "group": trajectory.group,
        "trajectory_metadata": trajectory.metadata,
        "is_excluded": trajectory.is_excluded or (step is not None and step.is_excluded),
        "source": row.source,
        "said_at": say_time(row.created_at),
    }


def _has_preferences(hidden: Hidden) -> Q:
    return _has(Preference.objects.undeleted().decided().outside(hidden))


def _has_corrections(hidden: Hidden) -> Q:
    return _has(Preference.objects.undeleted().corrections().outside(hidden))


def _has_hints(_hidden: Hidden) -> Q:
    return _has(Label.objects.hints())


def _has(rows: QuerySet[Any]) -> Q:
    return Q(Exists(rows.filter(trajectory=OuterRef("pk"))))


JUDGED_SHAPES = (
    RowShape(
        name=Shape.PREFERENCE,
        render=_render_preferences,
        has=_has_preferences,
        nothing="nothing in it was compared, ranked or corrected: there is no preference to export",
    ),
    RowShape(
        name=Shape.SFT,
        render=_render_corrections,
        has=_has_corrections,
        nothing="no answer in it was corrected: nothing to export; conversations as they are have another shape",
    ),
    RowShape(
        name=Shape.HINTS,
        render=_render_hints,
        has=_has_hints,
        nothing="no step in it has a hint: there is nothing to export",
    ),
)
SHAPES: Mapping[str, RowShape] = {shape.name: shape for shape in (*POOL_SHAPES, *JUDGED_SHAPES)}


def find_shape(name: str) -> RowShape:
    """Return the shape of this name. Raises InvalidInput that names those there are."""
    shape = SHAPES.get(name)
    if shape is None:
        raise InvalidInput(f"there is no shape {name!r}; there are {', '.join(SHAPES)}", field="shape")
    return shape


def count_frozen(snapshot: Snapshot, *, hidden: Hidden) -> Counter[str] | None:
    """Return how many rows of each of these shapes a snapshot's latest trajectories have; None where it was taken
    before that was kept. What is about `hidden` ones is not counted."""
    entries = list_latest(snapshot).exclude(trajectory_id__in=hidden)
    unseen = set(Preference.objects.touching(hidden).values_list("pk", flat=True))
    counts = Counter[str]({shape.name: 0 for shape in JUDGED_SHAPES})
    for judged in entries.exclude(judged={}).values_list("judged", flat=True):
        if judged is None:
            return None
        counts.update({shape: len(set(judged.get(shape, ())) - unseen) for shape in counts})
    return counts
