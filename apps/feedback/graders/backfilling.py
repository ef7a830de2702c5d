"""Lines up, piece by piece, what a back-fill is to grade; the grading itself is `running.py`'s."""

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import Count, Exists, OuterRef
from django.db.models.fields.json import KT
from django.db.models.functions import JSONObject
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.live import publish_news
from apps.feedback.graders.models import Backfill, GraderVersion, Grading, GradingState, WorkState
from apps.feedback.graders.running import is_sampled, line_up
from apps.trajectories.blindness import NOTHING, Hidden, find_hidden
from apps.trajectories.models import TrajectoryState
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import TooSlow, find_matching, patience

PIECE = 500
AGAIN = (GradingState.FAILED, GradingState.SKIPPED)
MOST_COUNTED = 10_000


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a back-fill is, in trajectories. `n_total` still grows until all are lined up."""

    n_total: int
    n_waiting: int
    n_graded: int
    n_skipped: int
    n_failed: int

    @property
    def n_looked_at(self) -> int:
        return self.n_graded + self.n_skipped + self.n_failed


def fill_backfill(backfill_id: str) -> None:
    """Line up everything that the back-fill means. Going on with a half of it is fine, and so is doing it twice."""
    while _line_up_piece(backfill_id):
        pass


@transaction.atomic
def _line_up_piece(backfill_id: str) -> bool:
    rows = Backfill.objects.select_for_update(of=("self",)).select_related("version__grader__project__team", "author")
    backfill = rows.filter(pk=backfill_id).first()
    if backfill is None or not backfill.is_under_way or backfill.is_lined_up:
        return False
    project = backfill.version.grader.project
    hidden = find_hidden(Caller(user=backfill.author))  # what is graded would tell who asked
    found = _find_gradable(project, backfill.query, now=backfill.asked_at, hidden=hidden).filter(pk__lte=backfill.upto)
    found = found.filter(pk__lt=backfill.cursor) if backfill.cursor else found
    ids = list(found.order_by("-pk").values_list("pk", flat=True)[:PIECE])
    version = backfill.version
    sampled = [pk for pk in ids if is_sampled(version, pk)]
    known = Grading.objects.filter(version=version, trajectory__in=sampled)
    n_again = known.filter(state__in=AGAIN).update(
        state=GradingState.WAITING,
        n_tries=0,
        due_at=timezone.now(),
        backfill=backfill,
        error="",
        before=JSONObject(state="state", error="error", backfill="backfill_id"),
    )
    backfill.n_total += n_again + line_up(version, ids, backfill_id=backfill.pk)
    backfill.cursor = ids[-1] if ids else backfill.cursor
    backfill.is_lined_up = len(ids) < PIECE
    backfill.state, backfill.touched_at = WorkState.RUNNING, timezone.now()
    backfill.save()
    publish_news(project.pk, kind="grader", object_id=version.grader_id)
    return not backfill.is_lined_up


def drop_waiting(backfill: Backfill) -> None:
    """Forget what a stopped back-fill has not graded yet; what it took up again is as it was before."""
    waiting = Grading.objects.filter(backfill=backfill, state=GradingState.WAITING)
    waiting.filter(before__isnull=True).delete()
    waiting.update(state=KT("before__state"), error=KT("before__error"), backfill=KT("before__backfill"), before=None)


def _find_gradable(project: Project, query: str, *, now: datetime, hidden: Hidden) -> TrajectoryQuerySet:
    found = find_matching(project=project, query=parse_query(query), now=now, hidden=hidden)
    return found.filter(state=TrajectoryState.COMPLETE, n_steps__gt=0)


def count_gradable(*, caller: Caller, version: GraderVersion, query: str) -> int | None:
    """Return how many trajectories a back-fill of what `query` finds would have the version grade now.

    None: too many to be counted. Raises SearchError.
    """
    project, hidden = version.grader.project, find_hidden(caller)
    known = Grading.objects.filter(version=version, trajectory=OuterRef("pk")).exclude(state__in=AGAIN)
    found = _find_gradable(project, query, now=timezone.now(), hidden=hidden).filter(~Exists(known))
    try:
        with patience():
            ids = list(found.values_list("pk", flat=True)[: MOST_COUNTED + 1])
    except TooSlow:
        return None
    return sum(is_sampled(version, pk) for pk in ids) if len(ids) <= MOST_COUNTED else None


def read_progress(backfill: Backfill, *, hidden: Hidden = NOTHING) -> Progress:
    """Return how far the back-fill is, of `hidden` nothing: that one was graded may tell what was said of it."""
    seen = Grading.objects.filter(backfill=backfill).exclude(trajectory__in=hidden)
    states = seen.order_by().values("state").annotate(n=Count("pk"))
    counts = {row["state"]: row["n"] for row in states}
    return Progress(
        n_total=sum(counts.values()),
        n_waiting=counts.get(GradingState.WAITING, 0) + counts.get(GradingState.RUNNING, 0),
        n_graded=counts.get(GradingState.DONE, 0),
        n_skipped=counts.get(GradingState.SKIPPED, 0),
        n_failed=counts.get(GradingState.FAILED, 0),
    )


def end_backfills() -> int:
    """Mark as done those of which nothing waits any more, and tell open pages; returns how many."""
    ended = 0
    lined_up = Backfill.objects.filter(state=WorkState.RUNNING, is_lined_up=True).select_related("version__grader")
    for backfill in lined_up[:100]:
        waits = Grading.objects.filter(backfill=backfill, state__in=[GradingState.WAITING, GradingState.RUNNING])
        running = Backfill.objects.filter(pk=backfill.pk, state=WorkState.RUNNING)
        if not waits.exists() and running.update(state=WorkState.DONE, ended_at=timezone.now()) == 1:
            grader = backfill.version.grader
            publish_news(grader.project_id, kind="grader", object_id=grader.pk)
            ended += 1
    return ended
