"""Calls that found no trajectory: kept in the ledger, listed here so that a person can give them a place.

Written by the recorder in the transaction in which it looked at them. Knows no reason: the exchange tells it.
"""

from collections.abc import Sequence

from django.db import models
from django.utils import timezone

from apps.core.ids import ID_MAX_LENGTH
from apps.trajectories.models import Exchange


class UnassignedCall(models.Model):
    """An exchange of a project that is in no trajectory."""

    exchange_id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH)
    project_id = models.CharField(max_length=ID_MAX_LENGTH)
    noticed_at = models.DateTimeField(default=timezone.now)

    class Meta:
        indexes = [models.Index(fields=["project_id", "-exchange_id"], name="unassigned_by_project")]

    def __str__(self) -> str:
        return self.exchange_id


def keep_unassigned(exchanges: Sequence[Exchange]) -> None:
    """Note that these calls have no trajectory."""
    rows = [UnassignedCall(exchange_id=exchange.id, project_id=exchange.project_id) for exchange in exchanges]
    UnassignedCall.objects.bulk_create(rows, ignore_conflicts=True)
