"""What was said of a trajectory beside what its reward adds up from: words, and all of its steps and spans of words."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models import Q

from apps.accounts.access import Caller
from apps.accounts.models import Project, Role, User
from apps.console.review_form import Box, read_boxes, tell_label
from apps.core.errors import InvalidInput, NotFound
from apps.feedback import services
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import FieldKind, FieldSpec
from apps.feedback.services import Span
from apps.trajectories.blindness import Hidden
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory

SHOWN = 100
QUOTED = 80
MARKED = 2000
Voice = tuple[object, ...]
_HEAVY = ("tail_token_ids", "completion_token_ids", "logprobs", "tail_messages", "answer_digests")
_HEAVY_OF_STEP = tuple(f"step__{name}" for name in _HEAVY)


@dataclass(frozen=True, kw_only=True)
class Said:
    """One standing label: of what, and whether this person may take it back."""

    label: Label
    told: Box
    quote: str  # the words that it is about, cut to what a line holds
    words: str  # all of them, and in which place of those where they stand; "" where they are too many to be marked
    place: int
    may_take_back: bool


@dataclass(frozen=True, kw_only=True)
class SaidPanel:
    """What was said, the newest first, and the boxes by which more is said."""

    said: list[Said]
    n_more: int
    preferences: list[tuple[Preference, bool]]
    boxes: list[Box]
    steps: list[Step]


def read_panel(trajectory: Trajectory, *, caller: Caller, role: Role, hidden: Hidden) -> SaidPanel:
    """Return the panel, with what the caller may see."""
    rows = Label.objects.standing().filter(trajectory=trajectory).seen_by(caller, hidden=hidden)
    rows = rows.exclude(Q(value__isnull=False) | Q(said__isnull=False), step=None)  # the panel of the reward has those
    labels = list(
        rows.select_related("author", "key", "token", "grader__grader", "step")
        .defer(*_HEAVY_OF_STEP)
        .order_by("-pk")[: SHOWN + 1]
    )
    of_it = Q(trajectory=trajectory) | Q(rejected_trajectory=trajectory)
    pairs = Preference.objects.standing().filter(of_it).seen_by(caller, hidden=hidden)
    pairs = pairs.select_related(
        "author", "key", "step", "trajectory", "rejected_trajectory", "chosen_version", "rejected_version"
    ).defer(*_HEAVY_OF_STEP)
    known = {spec.name: spec for spec in find_schema(trajectory.project_id).fields.fields}
    fields = [spec for spec in known.values() if spec.kind != FieldKind.RANKING]
    orders = role.includes(Role.TRAINER)
    return SaidPanel(
        said=[_show(label, known=known, user=caller.user, orders=orders) for label in labels[:SHOWN]],
        n_more=max(0, len(labels) - SHOWN),
        preferences=[(row, orders or row.author == caller.user) for row in pairs.order_by("-pk")[:20]],
        boxes=read_boxes(fields, {}),
        steps=list(Step.objects.filter(trajectory=trajectory).only("id", "index").order_by("index")[:200]),
    )


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Words to the model, and what their author says that the step is worth, in the schema's words; "" where they say
    nothing of it."""

    label: Label
    verdict: str


def read_hints(
    trajectory: Trajectory, step_ids: Sequence[str], *, caller: Caller, hidden: Hidden
) -> dict[str, list[Hint]]:
    """Return, by step, the words to the model that stand and that the caller may see."""
    rows = Label.objects.hints().filter(trajectory=trajectory, step__in=step_ids).seen_by(caller, hidden=hidden)
    labels = list(rows.select_related("author", "key", "token", "grader__grader").order_by("pk"))
    verdicts = _read_verdicts(trajectory, {label.step_id for label in labels}, caller=caller, hidden=hidden)
    found: dict[str, list[Hint]] = {}
    for label in labels:
        said = ", ".join(verdicts.get(_voice_of(label), ()))
        found.setdefault(label.step_id or "", []).append(Hint(label=label, verdict=said))
    return found


def _read_verdicts(
    trajectory: Trajectory, step_ids: Collection[str | None], *, caller: Caller, hidden: Hidden
) -> dict[Voice, list[str]]:
    """Return what each author says of these steps as a whole."""
    if not step_ids:
        return {}
    known = {spec.name: spec for spec in find_schema(trajectory.project_id).fields.fields}
    rows = Label.objects.standing().filter(trajectory=trajectory, step__in=step_ids, span_start=None)
    rows = rows.filter(Q(value__isnull=False) | Q(said__isnull=False)).seen_by(caller, hidden=hidden)
    found: dict[Voice, list[str]] = {}
    for label in rows.select_related("grader").order_by("pk"):
        found.setdefault(_voice_of(label), []).append(tell_label(label, known).line)
    return found


def _voice_of(label: Label) -> Voice:
    """Return who says it of which step; what an earlier version of a grader said is its own too."""
    grader = label.grader.grader_id if label.grader else None
    return label.step_id, label.source, label.author_id, label.key_id, label.token_id, grader, label.end_user


def _show(label: Label, *, known: Mapping[str, FieldSpec], user: User | None, orders: bool) -> Said:
    is_own = label.author == user and label.source == Source.HUMAN
    words, place = _find_words(label)
    return Said(
        label=label,
        told=tell_label(label, known),
        quote=words if len(words) <= QUOTED else f"{words[: QUOTED - 1]}…",
        words=words if len(words) <= MARKED else "",
        place=place,
        may_take_back=is_own or orders,
    )


def _find_words(label: Label) -> tuple[str, int]:
    if label.span is None or label.step is None:
        return "", 0
    start, end = label.span
    said = spoken_text(json.loads(bytes(label.step.answer)))
    words = said[start:end]
    return words, sum(said.startswith(words, at) for at in range(start)) if len(words) <= MARKED else 0


def find_span(step: Step, words: str, *, place: int = 0) -> Span:
    """Return where these words stand in what the step said; `place` counts the places where they do.

    Raises InvalidInput when they do not: what a page shows as Markdown has lost its signs.
    """
    said = spoken_text(json.loads(bytes(step.answer)))
    found: list[int] = []
    start = said.find(words)
    while start >= 0 and len(found) <= place:
        found.append(start)
        start = said.find(words, start + 1)
    if not words or not found:
        raise InvalidInput(
            "these words do not stand so in what the step said: choose its view Plain, and select them there",
            field="words",
        )
    start = found[min(place, len(found) - 1)]
    return start, start + len(words)


def name_fields(project: Project, names: Iterable[str]) -> str:
    """Return what the score schema of now calls these fields; one that it has no more speaks for itself."""
    known = {spec.name: spec.words for spec in find_schema(project.pk).fields.fields}
    return ", ".join(known.get(name, name.replace("_", " ")) for name in names)


def find_label(project: Project, caller: Caller, label_id: str) -> Label:
    """Return a label of the project or raise NotFound."""
    label = services.find_label(caller=caller, label_id=label_id)
    if label.project_id != project.pk:
        raise NotFound("this project has no such label")
    return label
