"""What an export is made of: the trajectories of a snapshot, a dataset or a search, in order of their ids.

The order is the key, so that work can go on after any of them. Trajectories that came later are not in it. What is
hidden from the export's author (`blindness`) is left out and counted; what a search for rewards or labels would have
found of it is not even counted, for that would tell; and of a shape of judgements all that is hidden counts as left
out, whether it was judged or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Max, Q, QuerySet

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.trajectories.blindness import Hidden, find_hidden
from apps.trajectories.datasets.models import AddedBy, Dataset, Export, SnapshotEntry
from apps.trajectories.datasets.rows import Pinned
from apps.trajectories.datasets.services import add_to_dataset
from apps.trajectories.datasets.shapes import RowShape
from apps.trajectories.models import Trajectory
from apps.trajectories.querysets import TrajectoryQuerySet
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching, patience, warn_of_strangers


@dataclass(frozen=True, kw_only=True)
class Item:
    """One trajectory of a source. None: the snapshot has it, the pool does not any more, or it `is_hidden`."""

    trajectory_id: str
    trajectory: Trajectory | None
    pinned: Pinned | None = None
    is_hidden: bool = False


def add_found_to_dataset(*, dataset: Dataset, caller: Caller, query: str) -> int:
    """Add all that a search finds now for the caller and return how many are new in the dataset.

    Raises SearchError, TooSlow.
    """
    rows = find_matching(project=dataset.project, query=parse_query(query), hidden=find_hidden(caller))
    return add_to_dataset(dataset=dataset, caller=caller, trajectories=rows, how=AddedBy.SEARCH, query=query)


def measure_source(export: Export, shape: RowShape) -> tuple[int, str]:
    """Return how many trajectories with something of the shape the source has now, and the last one's id ("": of a
    snapshot, to which none is added). Raises InvalidInput when it has none.
    """
    hidden = find_hidden_from(export)
    if export.snapshot_id is not None:
        _check_frozen(export, shape)
        n, last = _entries_of(export, shape, hidden=hidden).count(), ""
    else:
        rows = _rows_of(export, shape, hidden=hidden)
        with patience():
            last = rows.aggregate(last=Max("id"))["last"] or ""
            n = rows.order_by().count()
    if not n:
        fault = [shape.nothing, warn_of_export(export)]
        raise InvalidInput("; ".join(filter(None, fault)), field="query" if export.query else "")
    return n, last


def _check_frozen(export: Export, shape: RowShape) -> None:
    if shape.has and SnapshotEntry.objects.filter(snapshot=export.snapshot_id, judged__isnull=True).exists():
        raise InvalidInput(
            "this snapshot is older than the freezing of corrections, preferences and hints: take a new one, or export "
            "the dataset",
            field="snapshot",
        )


def warn_of_export(export: Export) -> str:
    """Return what in its search may be a slip: agents and versions that the project has not."""
    return warn_of_strangers(project=export.project, query=export.query)


def read_items(export: Export, shape: RowShape, *, after: str, limit: int) -> list[Item]:
    """Return the next trajectories of the source whose ids sort after `after`."""
    hidden = find_hidden_from(export)
    if export.snapshot_id is not None:
        entries = _entries_of(export, shape, hidden=hidden).filter(trajectory_id__gt=after)
        items = _read_entries(export, list(entries.order_by("trajectory_id")[:limit]))
    else:
        rows = _rows_of(export, shape, hidden=hidden).filter(pk__gt=after).order_by("pk")
        if export.last_id:
            rows = rows.filter(pk__lte=export.last_id)
        items = [Item(trajectory_id=row.pk, trajectory=row) for row in rows[:limit]]
    return [_hide(item) if item.trajectory_id in hidden else item for item in items]


def _hide(item: Item) -> Item:
    return Item(trajectory_id=item.trajectory_id, trajectory=None, is_hidden=True)


def find_hidden_from(export: Export) -> Hidden:
    """Return which trajectories the export's author must not hear of now."""
    return find_hidden(Caller(user=export.author))


def _entries_of(export: Export, shape: RowShape, *, hidden: Hidden) -> QuerySet[SnapshotEntry]:
    rows = SnapshotEntry.objects.filter(snapshot=export.snapshot_id)
    return rows.filter(Q(judged__has_key=shape.name) | Q(trajectory_id__in=hidden)) if shape.has else rows


def _read_entries(export: Export, entries: Sequence[SnapshotEntry]) -> list[Item]:
    ids = [entry.trajectory_id for entry in entries]
    known = _of_project(export.project).in_bulk(ids)
    return [
        Item(
            trajectory_id=entry.trajectory_id,
            trajectory=known.get(entry.trajectory_id),
            pinned=Pinned(
                reward=entry.reward,
                step_rewards=entry.step_rewards,
                end_index=entry.end_index,
                judged=entry.judged or {},
            ),
        )
        for entry in entries
    ]


def _rows_of(export: Export, shape: RowShape, *, hidden: Hidden) -> TrajectoryQuerySet:
    if export.dataset_id is not None:
        rows = _of_project(export.project).filter(memberships__dataset=export.dataset_id)
    else:
        query = parse_query(export.query)
        rows = find_matching(project=export.project, query=query, now=export.created_at, hidden=hidden)
    return rows.filter(shape.has(hidden) | Q(pk__in=hidden)) if shape.has else rows


def _of_project(project: Project) -> TrajectoryQuerySet:
    return Trajectory.objects.of_project(project)
