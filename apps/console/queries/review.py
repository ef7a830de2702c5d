"""What the pages of review queues show."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Membership, Project, Role, User
from apps.console.queries.sides import Sides, show_one, show_pair
from apps.console.review_form import Box, read_boxes, read_sides
from apps.core.errors import NotFound
from apps.feedback.queues import services
from apps.feedback.queues.models import ItemState, QueueItem, QueueState, Review, ReviewQueue, ReviewState
from apps.feedback.queues.results import Counts, count_left_for, count_many, count_many_left
from apps.feedback.queues.waiting import count_many_stuck
from apps.trajectories.models import Trajectory


@dataclass(frozen=True, kw_only=True)
class QueueRow:
    """A queue in the list, what is left of it for this person, and how many of its items wait for nobody."""

    queue: ReviewQueue
    counts: Counts
    left: int
    stuck: int


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What lies before a reviewer: one item and its form."""

    item: QueueItem
    shown: Sides
    boxes: list[Box]
    review: Review | None = None  # None: a preview

    @property
    def others_follow(self) -> bool:
        """Somebody else is asked for a review of it, whatever this one says."""
        return self.item.n_wanted > self.item.n_done + 1


@dataclass(frozen=True, kw_only=True)
class Tally:
    """How far this person is in a queue."""

    left: int
    done: int
    today: int


def find_queue(project: Project, caller: Caller, queue_id: str, *, role: Role = Role.VIEWER) -> ReviewQueue:
    """Return a queue of the project or raise NotFound."""
    queue = services.find_queue(caller=caller, queue_id=queue_id, role=role)
    if queue.project_id != project.pk:
        raise NotFound("this project has no such review queue")
    return queue


def find_item(queue: ReviewQueue, caller: Caller, item_id: str) -> QueueItem:
    """Return an item of the queue or raise NotFound."""
    item = services.find_item(caller=caller, item_id=item_id)
    if item.queue_id != queue.pk:
        raise NotFound("this queue has no such item")
    return item


def list_rows(queues: Sequence[ReviewQueue], *, user: User) -> list[QueueRow]:
    """Return the rows of the list."""
    counts = count_many(queues)
    left = count_many_left([queue for queue in queues if queue.state == QueueState.OPEN], user)
    stuck = count_many_stuck([queue for queue in queues if queue.state != QueueState.ARCHIVED])
    return [
        QueueRow(queue=queue, counts=counts[queue.pk], left=left.get(queue.pk, 0), stuck=stuck.get(queue.pk, 0))
        for queue in queues
    ]


def read_tally(queue: ReviewQueue, *, user: User) -> Tally:
    """Return how far the person is."""
    since = timezone.now() - timedelta(hours=24)
    mine = Review.objects.filter(queue=queue, reviewer=user, state=ReviewState.SUBMITTED)
    counts = mine.aggregate(done=Count("pk"), today=Count("pk", filter=Q(closed_at__gte=since)))
    return Tally(left=count_left_for(queue, user), **counts)


def find_last(queue: ReviewQueue, *, user: User) -> Review | None:
    """Return what this person gave or skipped last: what an undo would take back."""
    closed = Review.objects.filter(
        queue=queue, reviewer=user, state__in=[ReviewState.SUBMITTED, ReviewState.SKIPPED]
    ).exclude(item__state=ItemState.DECIDED)
    return closed.order_by("-closed_at").first()


def is_last_decided(queue: ReviewQueue, *, user: User) -> bool:
    """Say whether somebody has decided over what this person gave or skipped in the queue."""
    decided = Review.objects.filter(queue=queue, reviewer=user, item__state=ItemState.DECIDED)
    return decided.filter(state__in=[ReviewState.SUBMITTED, ReviewState.SKIPPED]).exists()


def lay_out(review: Review, *, user: User) -> Desk:
    """Return the desk of a review."""
    return _lay_out(review.item, answers=review.answers, user=user, review=review)


def preview(queue: ReviewQueue, trajectories: Sequence[Trajectory], *, user: User) -> Desk:
    """Return the desk as a reviewer would see it, with nothing reserved."""
    other = trajectories[1] if len(trajectories) > 1 else None
    item = QueueItem(queue=queue, trajectory=trajectories[0], other=other, n_wanted=queue.n_reviews)
    return _lay_out(item, answers={}, user=user, review=None)


def show_sides(item: QueueItem, *, user: User, is_swapped: bool = False) -> Sides:
    """Return what is reviewed: a trajectory, or two tries under letters."""
    if item.other is None:
        return show_one(item.trajectory, user=user)
    left, right = (item.other, item.trajectory) if is_swapped else (item.trajectory, item.other)
    return show_pair(left, right, user=user)


def _lay_out(item: QueueItem, *, answers: dict[str, Any], user: User, review: Review | None) -> Desk:
    is_swapped = bool(review and ord(review.pk[-1]) % 2)
    shown = show_sides(item, user=user, is_swapped=is_swapped)
    if item.other is None:
        return Desk(item=item, shown=shown, boxes=read_boxes(services.read_fields(item.queue), answers), review=review)
    box = read_sides(item, is_swapped=is_swapped, answers=answers)
    return Desk(item=item, shown=shown, boxes=[box], review=review)


def list_reviewers(project: Project) -> list[User]:
    """Return the people of the team who may review."""
    roles = [role for role in Role if role.includes(Role.REVIEWER)]
    members = Membership.objects.filter(team_id=project.team_id, role__in=roles).select_related("user")
    return [member.user for member in members.order_by("user__email")[:200]]
