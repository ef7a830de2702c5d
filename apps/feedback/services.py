"""Every change to labels. Append-only: a change of mind is a new label, and so is an undo. Rewards follow at once.

Knows no HTTP; the arithmetic is in `scoring.py`, what a field takes in `score_schema.py`.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.accounts.access import Caller
from apps.accounts.models import Project, Role
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.graders.models import GraderVersion
from apps.feedback.models import Label, LabelQuerySet, Source
from apps.feedback.rewards import recompute
from apps.feedback.schemas import ProjectSchema, find_schema
from apps.feedback.score_schema import MAX_TEXT, REWARD_FIELD, FieldKind
from apps.feedback.superseding import supersede
from apps.feedback.thumbs.models import ThumbToken
from apps.trajectories.blindness import find_hidden
from apps.trajectories.messages import spoken_text
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import find_trajectory

MAX_FIELD = 60
MAX_END_USER = 100
MAX_ANSWERS = 200
Span = tuple[int, int]
Target = tuple[str | None, Span | None, str]  # a step's id (None: the whole), some of its words, a field
NOT_CURRENT = "this label is not current any more: somebody has changed it or taken it back"


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
    if not idempotency_key:
        return write_answers(author=author, trajectory=trajectory, answers=answers)
    [answer] = answers
    return [_add_once(author, trajectory, answer, idempotency_key)]


def _add_once(author: Author, trajectory: Trajectory, answer: Answer, idempotency_key: str) -> Label:
    """Add a label, or return the one that was added by this idempotency key before."""
    schema = find_schema(trajectory.project_id)
    draft = _draft(answer, author=author, trajectory=trajectory, schema=schema)
    draft.idempotency_key = idempotency_key
    try:
        with transaction.atomic():
            locked = _lock(trajectory)
            label = _find_repeated(draft, author=author)
            if label is None:
                [label] = _write_labels([draft], trajectory=locked, answers=[answer], author=author, schema=schema)
    except IntegrityError:  # Two requests with one idempotency key, on two trajectories at the same moment.
        label = _find_repeated(draft, author=author)
        if label is None:
            raise
    trajectory.refresh_from_db(fields=["reward"])
    return label


def write_answers(
    *, author: Author, trajectory: Trajectory, answers: Sequence[Answer], schema: ProjectSchema | None = None
) -> list[Label]:
    """Add what an author says whose right to say it was looked at before; what they, or an earlier version of a grader,
    said of the same targets is superseded. `schema` is the one in force, if it is known.

    Raises InvalidInput for a value that its field does not take (any more). A transaction around it is undone as well.
    """
    schema = schema or find_schema(trajectory.project_id)
    drafts = [_draft(answer, author=author, trajectory=trajectory, schema=schema) for answer in answers]
    with transaction.atomic(savepoint=False):
        locked = _lock(trajectory)
        labels = _write_labels(drafts, trajectory=locked, answers=answers, author=author, schema=schema)
    trajectory.reward = locked.reward
    return labels


def _lock(trajectory: Trajectory) -> Trajectory:
    """One author at a time on it."""
    return Trajectory.objects.select_for_update().get(pk=trajectory.pk)


def add_vote(*, token: ThumbToken, end_user: str, answer: Answer) -> Label:
    """Add what an end user says by a page's token; the same user's earlier word on the target is superseded."""
    assert answer.step is not None  # noqa: S101 (a page judges answers)
    author = Author(source=Source.END_USER, token=token, end_user=end_user)
    _check_words(end_user=end_user)
    [label] = write_answers(author=author, trajectory=answer.step.trajectory, answers=[answer])
    return label


@transaction.atomic
def take_back_vote(*, token: ThumbToken, end_user: str, step: Step, field: str) -> Label:
    """Undo what an end user said by a page's token. Conflict when they say nothing of the step."""
    _check_words(end_user=end_user)
    author = Author(source=Source.END_USER, token=token, end_user=end_user)
    trajectory = _lock(step.trajectory)
    standing = _own(author, trajectory).filter(step=step, field=field).first()
    if standing is None:
        raise Conflict("there is nothing to take back")
    [undo] = _undo([standing], trajectory=trajectory, caller=author.caller)
    return undo


@transaction.atomic
def label_steps(*, caller: Caller, trajectory: Trajectory, values: Mapping[str, float]) -> None:
    """Reward many steps of one trajectory at once, by id; what the author said of a step before is superseded.

    Saying the same again adds no label. Raises what `add_label` raises.
    """
    _require_reviewer(caller, trajectory)
    locked = _lock(trajectory)
    author = Author(caller=caller, source=choose_source(caller, None))
    schema = find_schema(trajectory.project_id)
    spec = schema.fields.find_field(REWARD_FIELD)
    earlier = {label.step_id: label for label in _own(author, locked).filter(step__in=list(values), field=spec.name)}
    labels = []
    for step_id, value in values.items():
        known = earlier.get(step_id)
        if known is None or known.value != spec.read(value):
            labels.append(_make(author, locked, step_id=step_id, schema_id=schema.id, value=spec.read(value)))
    _supersede({earlier[label.step_id].pk: label for label in labels if label.step_id in earlier})
    Label.objects.bulk_create(labels, batch_size=500)
    recompute(locked, schema=schema)
    trajectory.reward = locked.reward


def take_back_label(*, caller: Caller, label: Label) -> Label:
    """Undo a label by a new one that says nothing. Raises what `take_back_labels` raises."""
    [undo] = take_back_labels(caller=caller, trajectory=label.trajectory, ids=[label.pk])
    return undo


@transaction.atomic
def take_back_labels(*, caller: Caller, trajectory: Trajectory, ids: Sequence[str]) -> list[Label]:
    """Undo labels of a trajectory by new ones that say nothing: all of them, or none.

    Raises Conflict when one is not current any more (a stale undo), NotFound when one is gone, Forbidden for others'
    labels.
    """
    found = find_trajectory(caller=caller, trajectory_id=trajectory.pk, role=Role.REVIEWER)
    locked = _lock(trajectory)
    labels = list(Label.objects.filter(trajectory=locked, pk__in=ids))
    if len(labels) != len(ids):
        raise NotFound("one of these labels is gone")
    has_say = caller.role_in(found.project) in {Role.OWNER, Role.TRAINER}
    for label in labels:
        if not has_say and not _is_by(caller, label):
            raise Forbidden("only its author, a trainer or an owner of the team may take this label back")
        if label.is_undo:
            raise Conflict("this label is an undo itself; add a label instead")
    return _undo(labels, trajectory=locked, caller=caller)


def _undo(labels: Sequence[Label], *, trajectory: Trajectory, caller: Caller) -> list[Label]:
    undos = []
    for label in labels:
        author = Author(caller=caller, source=Source(label.source), end_user=label.end_user)
        undo = _make(author, trajectory, step_id=label.step_id, span=label.span, field=label.field, is_undo=True)
        undo.token_id = label.token_id
        undos.append(undo)
    _supersede(dict(zip([label.pk for label in labels], undos, strict=True)))
    Label.objects.bulk_create(undos)
    recompute(trajectory, with_steps=_speak_of_steps(undos))
    return undos


@transaction.atomic
def undo_labels(*, caller: Caller, trajectory: Trajectory, ids: Sequence[str]) -> None:
    """Take labels back as if they had never been said: what they superseded is said again by new labels, each in its
    author's name. Raises what `take_back_labels` raises."""
    earlier = list(Label.objects.filter(superseded_by__in=ids).values_list("pk", flat=True))
    take_back_labels(caller=caller, trajectory=trajectory, ids=ids)
    say_again(trajectory=trajectory, ids=earlier)


def say_again(*, trajectory: Trajectory, ids: Sequence[str]) -> dict[str, str]:
    """Say what these labels said once more, each in its author's name; returns the new ids by the old ones.

    Whose account is gone or who has spoken again meanwhile keeps silent, and so does what the score schema takes no
    more.
    """
    schema = find_schema(trajectory.project_id)
    has_author = Q(author__isnull=False) | Q(key__isnull=False) | Q(grader__isnull=False)
    silent = Label.objects.filter(has_author, pk__in=ids, trajectory=trajectory)
    said_again = {}
    for label in silent.select_related("author", "key", "grader", "step").order_by("pk"):
        caller = Caller(user=label.author, key=label.key)
        source = Source(label.source)
        author = Author(caller=caller, source=source, end_user=label.end_user, grader=label.grader)
        value = label.value if label.said is None else label.said
        answer = Answer(field=label.field, value=value, text=label.text, step=label.step, span=label.span)
        with suppress(InvalidInput):
            is_one_of_many = author.grader is None and schema.fields.find_field(label.field).many
            standing = _find_standing([label], trajectory=trajectory, author=author)
            if is_one_of_many or _target(label) not in standing:
                [again] = write_answers(author=author, trajectory=trajectory, answers=[answer], schema=schema)
                said_again[label.pk] = again.pk
    return said_again


def find_label(*, caller: Caller, label_id: str) -> Label:
    """Return the label if the caller may see its project, and it now."""
    known = Label.objects.seen_by(caller, hidden=find_hidden(caller))
    known = known.select_related("project__team", "trajectory__project", "step", "grader__grader", "token")
    label = known.filter(pk=label_id).first() if is_id(label_id, "labl") else None
    if label is None or caller.role_in(label.project) is None:
        raise NotFound(f"there is no label {label_id!r}")
    return label


def list_labels(*, caller: Caller, trajectory: Trajectory, step: Step | None = None) -> list[Label]:
    """Return the labels of a trajectory and its steps, or of one step, that the caller may see now: oldest first,
    superseded ones too."""
    labels = Label.objects.filter(trajectory=trajectory).seen_by(caller, hidden=find_hidden(caller))
    labels = labels.select_related("author", "key", "grader__grader", "token")
    if step is not None:
        labels = labels.filter(step=step)
    return list(labels.order_by("id"))


def list_hints(*, caller: Caller, project: Project) -> LabelQuerySet:
    """Return the project's hints that stand and that the caller may see now, for paging. Deleted trajectories have
    none."""
    hints = Label.objects.hints().filter(project=project, trajectory__deleted_at=None)
    return hints.seen_by(caller, hidden=find_hidden(caller)).select_related("author", "key", "grader__grader", "token")


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


def _write_labels(
    drafts: Sequence[Label],
    *,
    trajectory: Trajectory,
    answers: Sequence[Answer],
    author: Author,
    schema: ProjectSchema,
) -> list[Label]:
    """Write the drafts in place of what they supersede, and the (locked) trajectory's reward."""
    standing = _find_standing(drafts, trajectory=trajectory, author=author)
    superseded: dict[str, Label] = {}
    said: set[Target] = set()
    for draft, answer in zip(drafts, answers, strict=True):
        has_one_voice = author.grader is not None or not schema.fields.find_field(draft.field).many
        earlier = answer.replaces or (standing.get(_target(draft)) if has_one_voice else None)
        if answer.replaces is not None:
            _check_replaced(answer.replaces, draft=draft, author=author)
        if (has_one_voice and _target(draft) in said) or (earlier is not None and earlier.pk in superseded):
            raise InvalidInput("say one thing of a target in a field", field="answers")
        said.add(_target(draft))
        if earlier is not None:
            superseded[earlier.pk] = draft
    _supersede(superseded)  # before the new ones are there: a target has one standing label of a grader
    Label.objects.bulk_create(drafts, batch_size=500)
    recompute(trajectory, schema=schema, with_steps=_speak_of_steps(drafts))
    return list(drafts)


def _speak_of_steps(labels: Sequence[Label]) -> bool:
    return any(label.step_id is not None for label in labels)


def _find_standing(drafts: Sequence[Label], *, trajectory: Trajectory, author: Author) -> dict[Target, Label]:
    """Return by target what the author still says in the drafts' fields, the newest of each."""
    steps = {draft.step_id for draft in drafts} - {None}
    fields = {draft.field for draft in drafts}
    own = _own(author, trajectory).filter(Q(step__in=steps) | Q(step=None), field__in=fields)
    own = own.only("step_id", "span_start", "span_end", "field")
    return {_target(label): label for label in own.order_by("pk")}


def _target(label: Label) -> Target:
    return label.step_id, label.span, label.field


def _check_replaced(replaced: Label, *, draft: Label, author: Author) -> None:
    """Raise InvalidInput when the label to replace is another's or stands elsewhere."""
    if not _is_by(author.caller, replaced) or replaced.field != draft.field:
        raise InvalidInput("only a label of your own in the same field can be replaced", field="replaces")
    if replaced.trajectory_id != draft.trajectory_id or replaced.step_id != draft.step_id:
        raise InvalidInput("a label is replaced on its own target", field="replaces")


def _supersede(successors: Mapping[str, Label]) -> None:
    supersede(Label.objects.standing(), successors, refusal=NOT_CURRENT)


def _own(author: Author, trajectory: Trajectory) -> LabelQuerySet:
    """What the author has said of the trajectory and still says."""
    return Label.objects.standing().filter(author.own(), trajectory=trajectory)


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


def _find_repeated(draft: Label, *, author: Author) -> Label | None:
    """Return the label that has the draft's idempotency key already. Raises Conflict when it says something else."""
    first = Label.objects.filter(project_id=draft.project_id, idempotency_key=draft.idempotency_key).first()
    names = ("trajectory_id", "step_id", "span", "value", "said", "text", "source", "field", "end_user")
    if first is None:
        return None
    if not _is_by(author.caller, first) or any(getattr(first, name) != getattr(draft, name) for name in names):
        raise Conflict("this idempotency key was used for another label", field="idempotency_key")
    return first


def _is_by(caller: Caller, label: Label) -> bool:
    if caller.key is not None:
        return label.key_id == caller.key.pk
    return caller.user is not None and label.author_id == caller.user.pk
