"""What a review says, as labels: checked against the queue's fields, said through the services of labels and
preferences so that rewards follow, and taken back the same way."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Q

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.models import Label, Source
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.feedback.preferences.services import (
    add_comparison,
    compare_again,
    find_preference,
    take_back_preference,
    undo_preference,
)
from apps.feedback.preferences.sides import Side, hash_pair
from apps.feedback.queues.models import Mode, QueueItem
from apps.feedback.queues.services import BETTER, read_fields
from apps.feedback.schemas import ProjectSchema
from apps.feedback.score_schema import MAX_TEXT, FieldKind, FieldSpec
from apps.feedback.services import Answer, Author, take_back_labels, undo_labels, write_answers
from apps.feedback.services import say_again as label_again

TIE = "tie"
Answers = dict[str, dict[str, Any]]
CHANGED = "too late to undo: somebody has changed what this review said since. It stands as it is now"


def check_answers(
    item: QueueItem, given: Mapping[str, Any], *, schema: ProjectSchema, only: Sequence[str] | None = None
) -> Answers:
    """Return the answers in the shape in which they are kept; `only`: nothing else is asked.

    Raises InvalidInput that names the field, Conflict when the score schema has dropped all that is asked.
    """
    if item.queue.mode == Mode.PAIRS:
        return _check_pair(item, given)
    specs = {spec.name: spec for spec in read_fields(item.queue, schema) if only is None or spec.name in only}
    if not specs:
        raise Conflict("the score schema has none of the fields that this queue asks for any more: tell a trainer")
    if unknown := sorted(set(given) - set(specs)):
        raise InvalidInput(f"this queue has no field {unknown[0]!r}; it has {', '.join(specs)}", field=unknown[0])
    answers: Answers = {}
    for name, spec in specs.items():
        value, text = _read_answer(name, given.get(name))
        if spec.kind == FieldKind.TEXT:
            if value is not None:
                spec.read(value)
            if text.strip():
                answers[name] = {"value": None, "text": text}
        elif value is None:
            raise InvalidInput(f"{spec.words} is not answered yet", field=name)
        else:
            answers[name] = {"value": _read_value(spec, value), "text": text}
    if not answers:
        raise InvalidInput("say something in at least one field", field=next(iter(specs), "answers"))
    return answers


def say_answers(*, caller: Caller, item: QueueItem, answers: Mapping[str, Any], schema: ProjectSchema) -> list[str]:
    """Say them in the name of the caller, who may review it; returns the ids of the labels, or of the comparison."""
    if item.other is not None:
        better, text = answers[BETTER]["value"], answers[BETTER]["text"]
        one, other = Side(trajectory=item.trajectory), Side(trajectory=item.other)
        chosen, rejected = (other, one) if better == item.other.pk else (one, other)
        row = add_comparison(caller=caller, chosen=chosen, rejected=rejected, is_tie=better == TIE, text=text)
        return [row.pk]
    said = [Answer(field=name, value=one["value"], text=one["text"]) for name, one in answers.items()]
    author = Author(caller=caller, source=Source.HUMAN)
    labels = write_answers(author=author, trajectory=item.trajectory, answers=said, schema=schema)
    return [label.pk for label in labels]


def take_back_said(*, caller: Caller, item: QueueItem, labels: Sequence[str]) -> None:
    """Undo what a review or a decision said: what its author had said before is said again. Raises Conflict when any of
    it was changed since."""
    try:
        if item.other is None:
            undo_labels(caller=caller, trajectory=item.trajectory, ids=labels)
            return
        for preference_id in labels:
            undo_preference(caller=caller, preference=find_preference(caller=caller, preference_id=preference_id))
    except (Conflict, NotFound):
        raise Conflict(CHANGED) from None


def is_judged_by_others(item: QueueItem, *, user: User) -> bool:
    """Say whether another person has ever said something of the item's trajectories. What graders, rules and end users
    say does not count: they judge everything, so nothing could ever be undone."""
    rows = [pk for pk in (item.trajectory_id, item.other_id) if pk is not None]
    about = Q(trajectory__in=rows) | Q(rejected_trajectory__in=rows)
    labels = Label.objects.filter(trajectory__in=rows, source=Source.HUMAN).exclude(author=user)
    preferences = Preference.objects.filter(about, author__isnull=False).exclude(author=user)
    return labels.exists() or preferences.exists()


def silence(*, caller: Caller, item: QueueItem, authors: Sequence[str], fields: Sequence[str]) -> list[str]:
    """Take back what these people say of the item in these fields, however often they changed it; returns the ids."""
    if item.other is not None:
        pair = hash_pair(
            Side(trajectory=item.trajectory), Side(trajectory=item.other), kind=PreferenceKind.COMPARISON, field=""
        )
        said = Preference.objects.standing().filter(project=item.queue.project_id, pair=pair, author__in=authors)
        rows = list(said.select_related("project__team"))
        for preference in rows:
            take_back_preference(caller=caller, preference=preference)
        return [preference.pk for preference in rows]
    labels = Label.objects.standing().filter(trajectory=item.trajectory, step=None, source=Source.HUMAN)
    ids = list(labels.filter(author__in=authors, field__in=fields).values_list("pk", flat=True))
    take_back_labels(caller=caller, trajectory=item.trajectory, ids=ids)
    return ids


def say_again(*, item: QueueItem, ids: Sequence[str]) -> dict[str, str]:
    """Give people their word back that was silenced; returns the new ids by the old ones. Who cannot speak any more, or
    has spoken again, keeps silent."""
    if item.other is not None:
        return compare_again(ids)
    return label_again(trajectory=item.trajectory, ids=ids)


def _check_pair(item: QueueItem, given: Mapping[str, Any]) -> Answers:
    if set(given) != {BETTER}:
        raise InvalidInput(f"say which is better: {{{BETTER!r}: {{'value': …}}}}", field=BETTER)
    value, text = _read_answer(BETTER, given[BETTER])
    if value not in {item.trajectory_id, item.other_id, TIE}:
        raise InvalidInput(f"better is {item.trajectory_id}, {item.other_id} or {TIE}", field=BETTER)
    return {BETTER: {"value": value, "text": text}}


def _read_answer(name: str, given: Any) -> tuple[Any, str]:
    """An answer is {"value", "text"}, either of which may be missing."""
    if given is None:
        return None, ""
    if not isinstance(given, dict) or set(given) - {"value", "text"}:
        raise InvalidInput(f"{name}: an answer is {{value, text}}", field=name)
    value, text = given.get("value"), given.get("text") or ""
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise InvalidInput(f"a text may have {MAX_TEXT} characters", field=name)
    if not is_storable(text):
        raise InvalidInput(NUL_OR_HALF, field=name)
    return value, text


def _read_value(spec: FieldSpec, value: Any) -> Any:
    try:
        return spec.read(value)
    except InvalidInput as error:
        raise InvalidInput(error.message, field=spec.name) from None
