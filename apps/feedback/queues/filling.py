"""What comes into a queue: what its search finds (a sample of it, and what comes to match later), or what people add.

A row is in the sample or not, whenever it is asked: chance is a hash of queue and row. So a search can be asked again
from the beginning, and whoever dies in between loses nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.core.contracts.tasks import FILL_QUEUE
from apps.core.errors import Conflict, InvalidInput, ServiceError
from apps.core.ids import first_id
from apps.core.jobs import queue_task
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import Mode, QueueItem, QueueState, ReviewQueue
from apps.trajectories.blindness import NOTHING, Hidden, find_hidden
from apps.trajectories.models import Trajectory, TrajectoryState
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching, patience

log = structlog.get_logger(__name__)

CHUNK = 500
MOST_FOUND = 20_000  # that one search puts in
COUNTED = 1000  # that a preview counts
LOOKS_BACK = timedelta(days=2)  # a trajectory may be complete, or judged, long after it began
RESEND_AFTER = timedelta(minutes=2)
MOST_ADDED = 5000  # at once, by hand


def in_sample(queue_id: str, trajectory_id: str, *, rate: float) -> bool:
    """Say whether the row is in the queue's sample; the same whenever it is asked."""
    digest = hashlib.sha256(f"{queue_id} {trajectory_id}".encode()).digest()
    return int.from_bytes(digest[:8]) < rate * 2**64


def find_candidates(project: Project, query: str, *, hidden: Hidden = NOTHING) -> TrajectoryQuerySet:
    """Return the complete trajectories that a search finds; one for judgements finds none of `hidden`."""
    return find_matching(project=project, query=parse_query(query), hidden=hidden).filter(
        state=TrajectoryState.COMPLETE, n_steps__gt=0
    )


def count_matching(project: Project, query: str, *, hidden: Hidden = NOTHING) -> int:
    """Return how many the search finds, counting to `COUNTED` + 1. Raises SearchError, TooSlow."""
    with patience():
        return len(
            find_candidates(project, query, hidden=hidden).order_by("-pk").values_list("pk", flat=True)[: COUNTED + 1]
        )


def find_newest(project: Project, query: str, *, n: int, hidden: Hidden = NOTHING) -> list[Trajectory]:
    """Return the newest that the search finds. Raises SearchError, TooSlow."""
    with patience():
        return list(find_candidates(project, query, hidden=hidden).order_by("-pk")[:n])


def fill_queue(queue_id: str) -> int:
    """Put in all that the queue's search finds; returns how many are new. A search that fails is tried again later."""
    queue = ReviewQueue.objects.select_related("project", "searcher").get(pk=queue_id)
    started_at, hidden = timezone.now(), _find_hidden_of(queue)
    added = _add_found(queue, find_candidates(queue.project, queue.query, hidden=hidden))
    _same_search(queue).update(filled_at=timezone.now(), looked_at=started_at, left_out=sorted(hidden))
    return added


def _find_hidden_of(queue: ReviewQueue) -> Hidden:
    """Return what the queue's search may not find for now: what came in would tell who chose it. What a search finds
    that asks for no judgement tells nothing."""
    return find_hidden(Caller(user=queue.searcher)) if parse_query(queue.query).asks_for_judgements else NOTHING


def _same_search(queue: ReviewQueue) -> QuerySet[ReviewQueue]:
    """The queue while it has this search: one that was changed meanwhile has its own task."""
    rows = ReviewQueue.objects.filter(pk=queue.pk, query=queue.query, sample_rate=queue.sample_rate)
    return rows.filter(searcher=queue.searcher_id)


def add_new_matches(queue: ReviewQueue) -> int:
    """Put in what the queue's search finds among the trajectories of late; returns how many are new."""
    now, hidden = timezone.now(), _find_hidden_of(queue)
    bound = first_id("traj", (queue.looked_at or now) - LOOKS_BACK)
    added = _add_found(queue, find_candidates(queue.project, queue.query, hidden=hidden).filter(pk__gte=bound))
    _same_search(queue).update(looked_at=now, left_out=sorted(hidden.union(queue.left_out)))
    return added


def add_left_out(queue: ReviewQueue) -> int:
    """Put in what the queue's search finds among what was hidden from who chose it, and is not any more; returns how
    many are new."""
    hidden = _find_hidden_of(queue)
    shown = [pk for pk in queue.left_out if pk not in hidden]
    if not shown:
        return 0
    added = _add_found(queue, find_candidates(queue.project, queue.query).filter(pk__in=shown))
    _same_search(queue).update(left_out=sorted(hidden.intersection(queue.left_out)))
    return added


def tend_queues() -> None:
    """Fill queues whose task was lost, and add what came since where a queue wants that."""
    open_queues = ReviewQueue.objects.filter(state=QueueState.OPEN).select_related("project", "searcher")
    sourced = open_queues.filter(~Q(query="") | Q(auto_add=True))
    for queue_id in sourced.filter(filled_at=None, created_at__lt=timezone.now() - RESEND_AFTER).values_list(
        "pk", flat=True
    ):
        queue_task(FILL_QUEUE, queue_id)
    for queue in sourced.filter(~Q(left_out=[]) | Q(auto_add=True), filled_at__isnull=False):
        try:
            add_left_out(queue)
            if queue.auto_add:
                queue.refresh_from_db(fields=["left_out"])
                add_new_matches(queue)
        except ServiceError as error:  # too slow a search: the other queues go on
            log.warning("queue.unfilled", queue=queue.pk, error=error.message)


def add_trajectories(*, caller: Caller, queue: ReviewQueue, ids: Sequence[str]) -> int:
    """Add trajectories by hand (of a queue of pairs: those that belong together); returns how many items are new.

    Raises InvalidInput for ids that the project does not have, Forbidden for viewers, Conflict for an archived queue.
    """
    require_role(caller, queue.project, Role.REVIEWER)
    if queue.state == QueueState.ARCHIVED:
        raise Conflict("this queue is archived: nobody would be given what is added")
    if not ids or len(ids) > MOST_ADDED:
        raise InvalidInput(f"name 1 to {MOST_ADDED} trajectories", field="ids")
    known = Trajectory.objects.filter(project=queue.project_id, deleted_at=None, pk__in=set(ids))
    rows = list(known.order_by("-pk"))
    if len(rows) != len(set(ids)):
        missing = sorted(set(ids) - {row.pk for row in rows})[0]
        raise InvalidInput(f"this project has no trajectory {missing[:40]!r}", field="ids")
    with transaction.atomic():
        added = _insert(queue, _make_items(queue, rows))
        if added:
            record_event(queue, kind="added", actor=caller.name)
    return added


def _add_found(queue: ReviewQueue, rows: TrajectoryQuerySet) -> int:
    added = 0
    for chunk in _walk(rows):
        chosen = [row for row in chunk if in_sample(queue.pk, row.pk, rate=queue.sample_rate)]
        with transaction.atomic():
            new = _insert(queue, _make_items(queue, chosen))
            if new:
                record_event(queue, kind="added", actor="search")
        added += new
    return added


def _walk(rows: TrajectoryQuerySet) -> Iterator[list[Trajectory]]:
    """Return what is found in chunks, the newest first."""
    before, seen = "", 0
    while seen < MOST_FOUND:
        page = rows.filter(pk__lt=before) if before else rows
        with patience():
            chunk = list(page.select_related(None).order_by("-pk").only("id", "group", "title")[:CHUNK])
        if not chunk:
            return
        yield chunk
        before, seen = chunk[-1].pk, seen + len(chunk)


def _make_items(queue: ReviewQueue, rows: Sequence[Trajectory]) -> list[QueueItem]:
    if queue.mode == Mode.SCORE:
        return [QueueItem(queue=queue, trajectory=row, n_wanted=queue.n_reviews) for row in rows]
    taken = _paired(queue, rows)
    fresh = [row for row in rows if row.pk not in taken]
    return [
        QueueItem(queue=queue, trajectory=one, other=other, n_wanted=queue.n_reviews) for one, other in pair_up(fresh)
    ]


def _paired(queue: ReviewQueue, rows: Sequence[Trajectory]) -> set[str]:
    pairs = QueueItem.objects.filter(queue=queue).filter(Q(trajectory__in=rows) | Q(other__in=rows))
    return {pk for pair in pairs.values_list("trajectory_id", "other_id") for pk in pair}


def pair_up(rows: Iterable[Trajectory]) -> list[tuple[Trajectory, Trajectory]]:
    """Return pairs of tries at one task: of one group, or without a group of one question. What is left over waits."""
    waiting: dict[str, Trajectory] = {}
    pairs = []
    for row in rows:
        task = f"group {row.group}" if row.group else f"title {row.title}"
        if task == "title ":
            continue
        partner = waiting.pop(task, None)
        if partner is None:
            waiting[task] = row
        else:
            pairs.append((partner, row))
    return pairs


def _insert(queue: ReviewQueue, items: Sequence[QueueItem]) -> int:
    """Write those that are not there yet: somebody else may add the same at this moment."""
    known = QueueItem.objects.filter(queue=queue)
    before = set(known.filter(trajectory__in=[item.trajectory_id for item in items]).values_list("trajectory", "other"))
    fresh = [item for item in items if (item.trajectory_id, item.other_id) not in before]
    QueueItem.objects.bulk_create(fresh, ignore_conflicts=True, batch_size=CHUNK)
    return known.filter(pk__in=[item.pk for item in fresh]).count()
