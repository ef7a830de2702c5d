"""How many calls a grader may still make today. They are taken out of its budget before they are made, under a lock, so
that several workers together stay within it; what was not needed is given back.

Whoever dies in between has spent what it took: a budget errs on the side of fewer calls.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from apps.feedback.graders.models import DailyCalls


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Calls of one day that nobody else can make any more."""

    grader_id: str
    day: date
    n_calls: int


@transaction.atomic
def reserve_calls(grader_id: str, *, budget: int, each: int, n_questions: int) -> Reserved:
    """Take the calls of up to `n_questions` out of today's budget, `each` so many: of whole questions only."""
    day = timezone.now().astimezone(UTC).date()
    DailyCalls.objects.get_or_create(grader_id=grader_id, day=day)
    spent = DailyCalls.objects.select_for_update().get(grader_id=grader_id, day=day).n_calls
    n_calls = each * min(n_questions, max(0, budget - spent) // each)
    DailyCalls.objects.filter(grader_id=grader_id, day=day).update(n_calls=F("n_calls") + n_calls)
    return Reserved(grader_id=grader_id, day=day, n_calls=n_calls)


def settle_calls(reserved: Reserved, *, n_made: int) -> None:
    """Give back what was taken and not needed."""
    if n_made < reserved.n_calls:
        row = DailyCalls.objects.filter(grader_id=reserved.grader_id, day=reserved.day)
        row.update(n_calls=F("n_calls") - (reserved.n_calls - n_made))


def read_spent(grader_id: str) -> int:
    """Return how many of today's calls are spent."""
    day = timezone.now().astimezone(UTC).date()
    row = DailyCalls.objects.filter(grader_id=grader_id, day=day).values_list("n_calls", flat=True)
    return row.first() or 0


def next_day() -> datetime:
    """Return when the next UTC day begins."""
    tomorrow = timezone.now().astimezone(UTC).date() + timedelta(days=1)
    return datetime.combine(tomorrow, time(), tzinfo=UTC)
