"""What follows when an item has its reviews: done when they agree, disputed when not; a further opinion, a decision.

`find_disputed` is pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Role
from apps.core.errors import Conflict, Forbidden
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import MOST_REVIEWS, ItemState, QueueItem, Review, ReviewState
from apps.feedback.queues.saying import check_answers, say_again, say_answers, silence, take_back_said
from apps.feedback.queues.services import BETTER, read_fields
from apps.feedback.schemas import ProjectSchema, find_schema
from apps.feedback.score_schema import FieldKind, FieldSpec

Answers = Mapping[str, Any]
DECISION = ("decision", "decided_by", "decided_at", "decision_labels", "silenced_labels")
CHANGED_SINCE = "too late to take it back: somebody has changed what the decision said since. It stands as it is now"


def find_disputed(reviews: Sequence[Answers], *, specs: Sequence[FieldSpec], tolerance: float) -> list[str]:
    """Return the fields in which the reviews lie apart: numbers and scales by more than `tolerance` (a part of their
    range), others when they are not the same. Words never do. What was said when the field was of another kind is the
    same or it is not."""
    disputed = []
    for spec in specs:
        values = [answers[spec.name]["value"] for answers in reviews if spec.name in answers]
        if spec.kind != FieldKind.TEXT and len(values) > 1 and _lie_apart(spec, values, tolerance):
            disputed.append(spec.name)
    if len({answers[BETTER]["value"] for answers in reviews if BETTER in answers}) > 1:
        disputed.append(BETTER)
    return disputed


def _lie_apart(spec: FieldSpec, values: Sequence[Any], tolerance: float) -> bool:
    if spec.kind in {FieldKind.SCALE, FieldKind.NUMBER} and all(type(value) in {int, float} for value in values):
        return bool(max(values) - min(values) > tolerance * ((spec.high or 0) - (spec.low or 0)) + 1e-9)
    return any(value != values[0] for value in values)


def settle_item(item: QueueItem, *, schema: ProjectSchema | None = None) -> None:
    """Store what the (locked) item's counts say: open, done or disputed."""
    item.state, item.disputed = ItemState.OPEN, []
    if item.n_done >= item.n_wanted:
        given = Review.objects.filter(item=item, state=ReviewState.SUBMITTED).values_list("answers", flat=True)
        specs = read_fields(item.queue, schema)
        item.disputed = find_disputed(list(given), specs=specs, tolerance=item.queue.tolerance)
        item.state = ItemState.DISPUTED if item.disputed else ItemState.DONE
    item.save(update_fields=["state", "disputed", "n_wanted", "n_held", "n_done"])


@transaction.atomic
def ask_again(*, caller: Caller, item: QueueItem) -> QueueItem:
    """Ask for one more opinion of an item: whoever has reviewed it may, trainers and owners too.

    Raises Conflict when somebody has decided it, or it has as many reviews as one may have.
    """
    require_role(caller, item.queue.project, Role.REVIEWER)
    mine = Review.objects.filter(item=item, reviewer=caller.user, state=ReviewState.SUBMITTED)
    if caller.role_in(item.queue.project) not in {Role.OWNER, Role.TRAINER} and not mine.exists():
        raise Forbidden("only who has reviewed an item, a trainer or an owner may ask for another opinion of it")
    row = _lock(item)
    if row.state == ItemState.DECIDED:
        raise Conflict("somebody has decided this item: another opinion would change nothing")
    if row.n_wanted >= MOST_REVIEWS:
        raise Conflict(f"an item may have {MOST_REVIEWS} reviews")
    row.n_wanted += 1
    settle_item(row)
    record_event(row.queue, kind="asked again", item_id=row.pk, actor=caller.name)
    return row


@transaction.atomic
def decide_item(*, caller: Caller, item: QueueItem, answers: Answers) -> QueueItem:
    """Decide where reviews disagree: what the decider says stands instead of what they said in the disputed fields.

    Their reviews stay, for agreement is counted from them. Raises Conflict when the item is not disputed (any more),
    InvalidInput for answers that the fields do not take, Forbidden for reviewers.
    """
    require_role(caller, item.queue.project, Role.TRAINER)
    if caller.user is None:
        raise Forbidden("a decision is a person's: log in")
    row = _lock(item)
    if row.state != ItemState.DISPUTED:
        raise Conflict(f"there is nothing to decide: the item is {row.state}")
    schema = find_schema(row.queue.project_id)
    decision = check_answers(row, answers, schema=schema, only=row.disputed)
    given = Review.objects.filter(item=row, state=ReviewState.SUBMITTED).exclude(reviewer=None)
    authors = list(given.values_list("reviewer_id", flat=True))
    row.silenced_labels = silence(caller=caller, item=row, authors=authors, fields=row.disputed)
    row.decision_labels = say_answers(caller=caller, item=row, answers=decision, schema=schema)
    row.state, row.decision = ItemState.DECIDED, decision
    row.decided_by, row.decided_at = caller.user, timezone.now()
    row.save(update_fields=["state", *DECISION])
    record_event(row.queue, kind="decided", item_id=row.pk, actor=caller.name)
    return row


@transaction.atomic
def take_back_decision(*, caller: Caller, item: QueueItem) -> QueueItem:
    """Undo a decision: what it said is taken back, the reviewers have their word again, and the item is to decide anew.

    Raises Conflict when the item is not decided (any more), or when what the decision said was changed since; Forbidden
    for reviewers.
    """
    require_role(caller, item.queue.project, Role.TRAINER)
    row = _lock(item)
    if row.state != ItemState.DECIDED:
        raise Conflict(f"there is no decision to take back: the item is {row.state}")
    if not row.decision_labels:
        raise Conflict("this decision is from a version that did not note what it changed: give another reward instead")
    try:
        take_back_said(caller=caller, item=row, labels=row.decision_labels)
    except Conflict:
        raise Conflict(CHANGED_SINCE) from None
    said_again = say_again(item=row, ids=row.silenced_labels)
    for review in Review.objects.filter(item=row, state=ReviewState.SUBMITTED):
        review.labels = [said_again.get(label, label) for label in review.labels]
        review.save(update_fields=["labels"])
    row.decision = row.decided_by = row.decided_at = None
    row.decision_labels, row.silenced_labels, row.state = [], [], ItemState.DISPUTED
    row.save(update_fields=["state", *DECISION])
    settle_item(row)
    record_event(row.queue, kind="decision undone", item_id=row.pk, actor=caller.name)
    return row


def _lock(item: QueueItem) -> QueueItem:
    items = QueueItem.objects.select_related("queue__project__team", "trajectory", "other")
    return items.select_for_update(of=("self",), no_key=True).get(pk=item.pk)
