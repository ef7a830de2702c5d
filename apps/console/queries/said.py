"""Everything that people said of a trajectory, its steps and spans of their words, as its page shows it; and whether a
reviewer is to be kept from seeing it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q

from apps.accounts.models import Project, Role, User
from apps.console.review_form import Box, read_boxes
from apps.core.errors import InvalidInput, NotFound
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference
from apps.feedback.queues.models import Review, ReviewState
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import FieldKind
from apps.feedback.services import Span
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory

SHOWN = 100
QUOTED = 80


@dataclass(frozen=True, kw_only=True)
class Said:
    """One standing label: of what, and whether this person may take it back."""

    label: Label
    quote: str
    may_take_back: bool

    @property
    def answer(self) -> object:
        return self.label.value if self.label.said is None else self.label.said


@dataclass(frozen=True, kw_only=True)
class SaidPanel:
    """What was said, the newest first, and the boxes by which more is said."""

    said: list[Said]
    n_more: int
    preferences: list[tuple[Preference, bool]]
    boxes: list[Box]
    steps: list[Step]


def read_panel(trajectory: Trajectory, *, user: User, role: Role) -> SaidPanel:
    """Return the panel."""
    rows = Label.objects.standing().filter(trajectory=trajectory).select_related("author", "key", "step")
    labels = list(rows.order_by("-pk")[: SHOWN + 1])
    pairs = Preference.objects.standing().filter(trajectory=trajectory).select_related("author", "key", "step")
    fields = [spec for spec in find_schema(trajectory.project_id).fields.fields if spec.kind != FieldKind.RANKING]
    orders = role.includes(Role.TRAINER)
    return SaidPanel(
        said=[_show(label, user=user, orders=orders) for label in labels[:SHOWN]],
        n_more=max(0, len(labels) - SHOWN),
        preferences=[(row, orders or row.author_id == user.pk) for row in pairs.order_by("-pk")[:20]],
        boxes=read_boxes(fields, {}),
        steps=list(Step.objects.filter(trajectory=trajectory).only("id", "index").order_by("index")[:200]),
    )


def _show(label: Label, *, user: User, orders: bool) -> Said:
    is_own = label.author_id == user.pk and label.source == Source.HUMAN
    return Said(label=label, quote=_quote(label), may_take_back=is_own or orders)


def _quote(label: Label) -> str:
    if label.span is None or label.step is None:
        return ""
    start, end = label.span
    words = spoken_text(json.loads(bytes(label.step.answer)))[start:end]
    return words if len(words) <= QUOTED else f"{words[: QUOTED - 1]}…"


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


def find_label(project: Project, label_id: str) -> Label:
    """Return a label of the project or raise NotFound."""
    rows = Label.objects.select_related("trajectory__project__team", "step", "project__team")
    label = rows.filter(project=project, pk=label_id).first()
    if label is None:
        raise NotFound("this project has no such label")
    return label


def is_blind(trajectories: Sequence[Trajectory], *, user: User) -> bool:
    """Say whether this person reviews one of these in a blind queue now: then nothing that others said is shown."""
    ids = [row.pk for row in trajectories]
    held = Review.objects.filter(reviewer=user, state=ReviewState.HELD, queue__is_blind=True)
    return held.filter(Q(item__trajectory__in=ids) | Q(item__other__in=ids)).exists()
