"""The limits that a key, a project and a team may each have. They are enforced by the gateway."""

from functools import reduce
from operator import and_

from django.db import models

LIMIT_NAMES = ("requests_per_minute", "tokens_per_minute", "max_in_flight", "tokens_per_day")
HIGHEST_LIMIT = 10**12


class Limited(models.Model):
    """What may be asked of the gateway in a time; None: as much as one likes."""

    requests_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True)
    max_in_flight = models.PositiveBigIntegerField(null=True, blank=True)
    tokens_per_day = models.PositiveBigIntegerField(null=True, blank=True)  # UTC days

    class Meta:
        abstract = True

    def limits(self) -> dict[str, int | None]:
        """Return the limits by name."""
        return {name: getattr(self, name) for name in LIMIT_NAMES}


def limits_are_positive(kind: str) -> models.CheckConstraint:
    """Return the rule that no limit of a row is 0, which would be a switch and not a limit."""
    rules = [models.Q(**{name: None}) | models.Q(**{f"{name}__gt": 0}) for name in LIMIT_NAMES]
    return models.CheckConstraint(condition=reduce(and_, rules), name=f"{kind}_limits_are_positive")
