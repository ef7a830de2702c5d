"""Which trajectories came by an import: no engine of ours was asked for them, and nobody measured them."""

from collections.abc import Iterable

from django.db.models import Exists, OuterRef, Q

from apps.trajectories.datasets.models import Import, ImportedTrajectory
from apps.trajectories.models import Trajectory


def find_imported(rows: Iterable[Trajectory]) -> frozenset[str]:
    """Return the ids of those that came by an import."""
    found = ImportedTrajectory.objects.filter(trajectory__in=[row.pk for row in rows])
    return frozenset(found.values_list("trajectory_id", flat=True))


def find_import(trajectory: Trajectory) -> Import | None:
    """Return the import that the trajectory came by, if it did."""
    found = ImportedTrajectory.objects.select_related("source").filter(trajectory=trajectory).first()
    return found.source if found else None


def was_captured(column: str = "pk") -> Q:
    """Those that came by no import; `column` names the trajectory's id."""
    return ~Q(Exists(ImportedTrajectory.objects.filter(trajectory=OuterRef(column))))
