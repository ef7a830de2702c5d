"""Every change to labels. Append-only: a change of mind is a new label, and so is an undo. Rewards follow at once.

Knows no HTTP; the arithmetic is in `scoring.py`, what a field takes in `score_schema.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet

from apps.accounts.access import Caller
from apps.accounts.models import Role
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.graders.models import GraderVersion
from apps.feedback.models import Label, LabelQuerySet, Source
from apps.feedback.rewards import recompute
from apps.feedback.schemas import ProjectSchema, find_schema
from apps.feedback.score_schema import MAX_TEXT, REWARD_FIELD, FieldKind
from apps.feedback.thumbs.models import ThumbToken
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import find_trajectory

MAX_FIELD = 60
MAX_END_USER = 100
MAX_ANSWERS = 200
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What somebody says in one field. `value` is on the field's scale: a number, true, a choice's name.

    `replaces` is a label of the author's own that this one is to supersede; without it, what the author said before of
    the same target in the same field is superseded, unless the field takes many.
    """

    field: str = REWARD_FIELD
    value: Any = None
    text: str = ""
    step: Step | None = None
    span: Span | None = None
    replaces: Label | None = None


@dataclass(frozen=True, kw_only=True)
class Author:
    """Who speaks as one of the sources: a person, a key or a web page's token (an app's end user may stand behind
    both), or a grader."""

    caller: Caller = field(default_factory=Caller)
    source: Source
    end_user: str = ""
    grader: GraderVersion | None = None
    token: ThumbToken | None = None

    def columns(self) -> dict[str, Any]:
        """Return what this author's labels bear."""
        return {
            "source": self.source,
            "author": self.caller.user,
            "key": self.caller.key,
            "end_user": self.end_user,
            "grader": self.grader,
            "token": self.token,
        }

    def own(self) -> Q:
        """Return by what this author's labels are found. What an earlier version of a grader said is its own too."""
        if self.grader is not None:
            return Q(grader__grader=self.grader.grader_id)
        return Q(**self.columns())


def add_label(  # noqa: PLR0913 (a label's columns)
    *,
    caller: Caller,
    trajectory: Trajectory,
    step: Step | None = None,
    span: Span | None = None,
    value: Any,
    text: str = "",
    source: str | None = None,
    field: str = REWARD_FIELD,
    end_user: str = "",
    replaces: Label | None = None,
    idempotency_key: str = "",
) -> Label:
    """Add a label and return it; the author's earlier one on the same target and field is superseded.

    The same idempotency key with the same content returns the first label; with other content it is a Conflict.
    Raises InvalidInput for a value that the field does not take, NotFound for another team's trajectory, Forbidden for
    viewers.
    """
    answer = Answer(field=field, value=value, text=text, step=step, span=span, replaces=replaces)
    [label] = add_labels(
        caller=caller,
        trajectory=trajectory,
        answers=[answer],
        source=source,
        end_user=end_user,
        idempotency_key=idempotency_key,
    )
    return label


def add_labels(
    *,
    caller: Caller,
    trajectory: Trajectory,
    answers: Sequence[Answer],
    source: str | None = None,
    end_user: str = "",
    idempotency_key: str = "",
) -> list[Label]:
    """Add what one author says of one trajectory, its steps and spans: all of it, or nothing; the reward is computed
    once. An idempotency key goes with a single answer. Raises what `add_label` raises.
    """
    _require_reviewer(caller, trajectory)
    author = Author(caller=caller, source=choose_source(caller, source), end_user=end_user)
    _check_words(end_user=end_user, idempotency_key=idempotency_key)
    if not answers or len(answers) > MAX_ANSWERS:
        raise InvalidInput(f"say 1 to {MAX_ANSWERS} things at once", field="answers")
    schema = find_schema(trajectory.project_id)
    drafts = [_draft(answer, author=author, trajectory=trajectory, schema=schema) for answer in answers]
    if idempotency_key:
        [draft] = drafts
        draft.idempotency_key = idempotency_key
    try:
        labels = _write_labels(drafts, answers=answers, author=author, schema=schema)
    except IntegrityError:  # Two requests with one idempotency key, on two trajectories at the same moment.
        if not idempotency_key:
            raise
        labels = [_read_repeated(drafts[0], author=author)]
    trajectory.refresh_from_db(fields=["reward"])
    return labels


def add_grades(*, grader: GraderVersion, source: Source, trajectory: Trajectory, answers: Sequence[Answer]) -> None:
    """Add what a grader says; what it, or an earlier version of it, said of the same target before is superseded.

    Raises InvalidInput for a value that the field does not take (any more).
    """
    author = Author(source=source, grader=grader)
    schema = find_schema(trajectory.project_id)
    drafts = [_draft(answer, author=author, trajectory=trajectory, schema=schema) for answer in answers]
    _write_labels(drafts, answers=answers, author=author, schema=schema)


def add_vote(*, token: ThumbToken, end_user: str, answer: Answer) -> Label:
    """Add what an end user says by a page's token; the same user's earlier word on the target is superseded."""
    assert answer.step is not None  # noqa: S101 (a page judges answers)
    trajectory = answer.step.trajectory
    author = Author(source=Source.END_USER, token=token, end_user=end_user)
    _check_words(end_user=end_user)
    schema = find_schema(trajectory.project_id)
    draft = _draft(answer, author=author, trajectory=trajectory, schema=schema)
    [label] = _write_labels([draft], answers=[answer], author=author, schema=schema)
    return label


@transaction.atomic
def take_back_vote(*, token: ThumbToken, end_user: str, step: Step, field: str) -> Label:
    """Undo what an end user said by a page's token. Conflict when they say nothing of the step."""
    _check_words(end_user=end_user)
    author = Author(source=Source.END_USER, token=token, end_user=end_user)
    trajectory = Trajectory.objects.select_for_update().get(pk=step.trajectory_id)
    standing = _own(author, trajectory).filter(step=step, field=field).first()
    if standing is None:
        raise Conflict("there is nothing to take back")
    return _undo(standing, trajectory=trajectory, author=author)


@transaction.atomic
def label_steps(*, caller: Caller, trajectory: Trajectory, values: Mapping[str, float]) -> None:
    """Reward many steps of one trajectory at once, by id; what the author said of a step before is superseded.

    Saying the same again adds no label. Raises what `add_label` raises.
    """
    _require_reviewer(caller, trajectory)
    locked = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    author = Author(caller=caller, source=choose_source(caller, None))
    schema = find_schema(trajectory.project_id)
    spec = schema.fields.find_field(REWARD_FIELD)
    earlier = {label.step_id: label for label in _own(author, locked).filter(step__in=list(values), field=spec.name)}
    labels = []
    for step_id, value in values.items():
        known = earlier.get(step_id)
        if known is None or known.value != spec.read(value):
            labels.append(_make(author, locked, step_id=step_id, schema_id=schema.id, value=spec.read(value)))
    Label.objects.bulk_create(labels, batch_size=500)
    superseded = [(earlier[label.step_id], label) for label in labels if label.step_id in earlier]
    for old, new in superseded:
        old.superseded_by = new
    Label.objects.bulk_update([old for old, _ in superseded], ["superseded_by"], batch_size=500)
    recompute(locked, schema=schema)
    trajectory.refresh_from_db(fields=["reward"])


def take_back_label(*, caller: Caller, label: Label) -> Label:
    """Undo a label by a new one that says nothing. Conflict when it is not the current one any more (a stale undo)."""
    _require_reviewer(caller, label.trajectory)
    if not _is_by(caller, label) and caller.role_in(label.project) not in {Role.OWNER, Role.TRAINER}:
        raise Forbidden("only its author, a trainer or an owner of the team may take this label back")
    with transaction.atomic():
        trajectory = Trajectory.objects.select_for_update().get(pk=label.trajectory_id)
        current = Label.objects.get(pk=label.pk)
        if current.superseded_by_id is not None:
            raise Conflict("this label is not current any more: somebody has changed it or taken it back")
        if current.is_undo:
            raise Conflict("this label is an undo itself; add a label instead")
        author = Author(caller=caller, source=Source(current.source), end_user=current.end_user)
        return _undo(current, trajectory=trajectory, author=author)


def _undo(label: Label, *, trajectory: Trajectory, author: Author) -> Label:
    undo = _make(author, trajectory, step_id=label.step_id, span=label.span, field=label.field)
    undo.is_undo = True
    undo.save(force_insert=True)
    _supersede(label.pk, by=undo)
    recompute(trajectory)
    return undo


def find_label(*, caller: Caller, label_id: str) -> Label:
    """Return the label if the caller may see its project."""
    known = Label.objects.select_related("project__team", "trajectory__project", "step", "grader__grader", "token")
    label = known.filter(pk=label_id).first() if is_id(label_id, "labl") else None
    if label is None or caller.role_in(label.project) is None:
        raise NotFound(f"there is no label {label_id!r}")
    return label


def list_labels(*, trajectory: Trajectory, step: Step | None = None) -> list[Label]:
    """Return the labels of a trajectory and its steps, or of one step, oldest first, superseded ones too."""
    labels: QuerySet[Label] = Label.objects.filter(trajectory=trajectory)
    labels = labels.select_related("author", "key", "grader__grader", "token")
    if step is not None:
        labels = labels.filter(step=step)
    return list(labels.order_by("id"))


def _require_reviewer(caller: Caller, trajectory: Trajectory) -> None:
    find_trajectory(caller=caller, trajectory_id=trajectory.pk, role=Role.REVIEWER)


def choose_source(caller: Caller, source: str | None) -> Source:
    """A person speaks as a human; a key never does."""
    if caller.key is None:
        if source not in {None, "", Source.HUMAN}:
            raise InvalidInput("a person's label has the source human; use a key for other sources", field="source")
        return Source.HUMAN
    if not source:
        return Source.ENVIRONMENT
    others = ", ".join(value for value in Source.values if value != Source.HUMAN)
    if source == Source.HUMAN:
        raise InvalidInput(f"a key cannot speak as a human: log in, or use one of {others}", field="source")
    if source not in Source.values:
        raise InvalidInput(f"there is no source {source!r}; use one of {others}", field="source")
    return Source(source)


def _draft(answer: Answer, *, author: Author, trajectory: Trajectory, schema: ProjectSchema) -> Label:
    """Return the label that the answer makes, checked and not yet written."""
    if answer.step is not None and answer.step.trajectory_id != trajectory.pk:
        raise NotFound(f"the trajectory has no step {answer.step.pk!r}")
    _check_span(answer)
    if len(answer.text) > MAX_TEXT:
        raise InvalidInput(f"a text may have {MAX_TEXT} characters", field="text")
    _check_words(text=answer.text, field=answer.field)
    label = _make(
        author,
        trajectory,
        step_id=answer.step.pk if answer.step else None,
        span=answer.span,
        field=answer.field,
        text=answer.text,
        schema_id=schema.id,
    )
    label.value, label.said = _read_value(answer, schema)
    return label


def _read_value(answer: Answer, schema: ProjectSchema) -> tuple[float | None, Any]:
    """Return what the answer is worth and what was said, None where the worth says it."""
    spec = schema.fields.find_field(answer.field)
    if spec.kind == FieldKind.TEXT or answer.value is None:
        if answer.value is not None:
            spec.read(answer.value)
        if spec.kind != FieldKind.TEXT:
            raise InvalidInput(f"{spec.name} needs a value; for mere words choose the field comment", field="value")
        if not answer.text.strip():
            raise InvalidInput(f"{spec.name} is words: a text is needed", field="text")
        return None, None
    said = spec.read(answer.value)
    return (said, None) if spec.is_plain else (spec.reward_of(said), said)


def _check_span(answer: Answer) -> None:
    if answer.span is None:
        return
    if answer.step is None:
        raise InvalidInput("a span lies in the words of a step: name the step", field="span")
    start, end = answer.span
    length = len(spoken_text(json.loads(bytes(answer.step.answer))))
    if not 0 <= start < end <= length:
        raise InvalidInput(
            f"the step's words have {length} characters: a span goes from a start to a later end within them",
            field="span",
        )


def _check_words(**words: str) -> None:
    for name, text in words.items():
        if not is_storable(text):
            raise InvalidInput(NUL_OR_HALF, field=name)
    if len(words.get("end_user", "")) > MAX_END_USER:
        raise InvalidInput(f"a user's name has at most {MAX_END_USER} characters", field="end_user")


@transaction.atomic
def _write_labels(
    drafts: Sequence[Label], *, answers: Sequence[Answer], author: Author, schema: ProjectSchema
) -> list[Label]:
    trajectory = Trajectory.objects.select_for_update().get(pk=drafts[0].trajectory_id)  # One author at a time on it.
    if drafts[0].idempotency_key and _is_used(drafts[0]):
        return [_read_repeated(drafts[0], author=author)]
    for draft, answer in zip(drafts, answers, strict=True):
        earlier = None
        if answer.replaces is not None:
            earlier = _find_replaced(answer.replaces, draft=draft, author=author)
        elif author.grader is not None or not schema.fields.find_field(draft.field).many:
            earlier = _same_target(_own(author, trajectory), draft).values_list("pk", flat=True).first()
        if earlier is not None:  # before the new one is there: a target has one standing label of a grader
            _supersede(earlier, by=draft)
        draft.save(force_insert=True)
    recompute(trajectory, schema=schema)
    return list(drafts)


def _find_replaced(replaced: Label, *, draft: Label, author: Author) -> str:
    """Return the id of the label to supersede. Raises Conflict when it is stale, InvalidInput when it is another's."""
    if not _is_by(author.caller, replaced) or replaced.field != draft.field:
        raise InvalidInput("only a label of your own in the same field can be replaced", field="replaces")
    if replaced.trajectory_id != draft.trajectory_id or replaced.step_id != draft.step_id:
        raise InvalidInput("a label is replaced on its own target", field="replaces")
    if not Label.objects.standing().filter(pk=replaced.pk).exists():
        raise Conflict("this label is not current any more: somebody has changed it or taken it back", field="replaces")
    return replaced.pk


def _supersede(label_id: str, *, by: Label) -> None:
    if Label.objects.filter(pk=label_id, superseded_by=None).update(superseded_by=by) != 1:
        raise Conflict("this label is not current any more: somebody has changed it or taken it back")


def _own(author: Author, trajectory: Trajectory) -> LabelQuerySet:
    """What the author has said of the trajectory and still says."""
    return Label.objects.standing().filter(author.own(), trajectory=trajectory)


def _same_target(labels: LabelQuerySet, draft: Label) -> LabelQuerySet:
    return labels.filter(
        step=draft.step_id, span_start=draft.span_start, span_end=draft.span_end, field=draft.field
    ).order_by("-pk")


def _make(author: Author, trajectory: Trajectory, *, span: Span | None = None, **columns: Any) -> Label:
    start, end = span or (None, None)
    return Label(
        project_id=trajectory.project_id,
        trajectory=trajectory,
        span_start=start,
        span_end=end,
        **author.columns(),
        **columns,
    )


def _is_used(draft: Label) -> bool:
    return Label.objects.filter(project_id=draft.project_id, idempotency_key=draft.idempotency_key).exists()


def _read_repeated(draft: Label, *, author: Author) -> Label:
    first = Label.objects.get(project_id=draft.project_id, idempotency_key=draft.idempotency_key)
    names = ("trajectory_id", "step_id", "span", "value", "said", "text", "source", "field", "end_user")
    if not _is_by(author.caller, first) or any(getattr(first, name) != getattr(draft, name) for name in names):
        raise Conflict("this idempotency key was used for another label", field="idempotency_key")
    return first


def _is_by(caller: Caller, label: Label) -> bool:
    if caller.key is not None:
        return label.key_id == caller.key.pk
    return caller.user is not None and label.author_id == caller.user.pk
