"""What an export is made of: the trajectories of a snapshot, a dataset or a search, in order of their ids.

The order is the key, so that work can go on after any of them. Trajectories that came later are not in it. What is
hidden from the export's author (`blindness`) is left out and counted; what a search for rewards or labels would have
found of it is not even counted, for that would tell.
"""

from dataclasses import dataclass

from django.db.models import Max

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.trajectories.blindness import Hidden, find_hidden
from apps.trajectories.datasets.models import AddedBy, Dataset, Export, SnapshotEntry
from apps.trajectories.datasets.rows import Pinned
from apps.trajectories.datasets.services import add_to_dataset
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


def measure_source(export: Export) -> tuple[int, str]:
    """Return how many trajectories the source has now, and the last one's id. Raises InvalidInput when it has none."""
    if export.snapshot:
        return export.snapshot.n_trajectories, ""
    rows = _rows_of(export, hidden=_hidden_from_author(export))
    with patience():
        last = rows.aggregate(last=Max("id"))["last"] or ""
        n = rows.order_by().count()
    if not n:
        fault = ["there is no trajectory in it: nothing to export", warn_of_export(export)]
        raise InvalidInput("; ".join(filter(None, fault)), field="query" if export.query else "")
    return n, last


def warn_of_export(export: Export) -> str:
    """Return what in its search may be a slip: agents that the project has not."""
    return warn_of_strangers(project=export.project, query=export.query)


def read_items(export: Export, *, after: str, limit: int) -> list[Item]:
    """Return the next trajectories of the source whose ids sort after `after`."""
    hidden = _hidden_from_author(export)
    if export.snapshot_id is not None:
        items = _read_entries(export, after=after, limit=limit)
    else:
        rows = _rows_of(export, hidden=hidden).filter(pk__gt=after).order_by("pk")
        if export.last_id:
            rows = rows.filter(pk__lte=export.last_id)
        items = [Item(trajectory_id=row.pk, trajectory=row) for row in rows[:limit]]
    return [_hide(item) if item.trajectory_id in hidden else item for item in items]


def _hide(item: Item) -> Item:
    return Item(trajectory_id=item.trajectory_id, trajectory=None, is_hidden=True)


def _hidden_from_author(export: Export) -> Hidden:
    return find_hidden(Caller(user=export.author))


def _read_entries(export: Export, *, after: str, limit: int) -> list[Item]:
    rows = SnapshotEntry.objects.filter(snapshot=export.snapshot_id, trajectory_id__gt=after)
    entries = list(rows.order_by("trajectory_id")[:limit])
    ids = [entry.trajectory_id for entry in entries]
    known = _of_project(export.project).in_bulk(ids)
    return [
        Item(
            trajectory_id=entry.trajectory_id,
            trajectory=known.get(entry.trajectory_id),
            pinned=Pinned(reward=entry.reward, step_rewards=entry.step_rewards, end_index=entry.end_index),
        )
        for entry in entries
    ]


def _rows_of(export: Export, *, hidden: Hidden) -> TrajectoryQuerySet:
    if export.dataset_id is not None:
        return _of_project(export.project).filter(memberships__dataset=export.dataset_id)
    query = parse_query(export.query)
    return find_matching(project=export.project, query=query, now=export.created_at, hidden=hidden)


def _of_project(project: Project) -> TrajectoryQuerySet:
    return Trajectory.objects.of_project(project)
