"""Facts that give way to later ones: labels and preferences alike."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Case, CharField, QuerySet, Value, When

from apps.core.errors import Conflict


def supersede(standing: QuerySet[Any], successors: Mapping[str, Any], *, refusal: str) -> None:
    """Have each fact (by id) be superseded by its successor, in one statement. Raises Conflict with the words of
    `refusal` when one of them does not stand any more: somebody was faster."""
    if not successors:
        return
    cases = [When(pk=pk, then=Value(by.pk)) for pk, by in successors.items()]
    found = standing.filter(pk__in=list(successors))
    if found.update(superseded_by=Case(*cases, output_field=CharField())) != len(successors):
        raise Conflict(refusal)
