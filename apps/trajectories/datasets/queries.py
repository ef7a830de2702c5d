"""What pages and the API show of datasets and snapshots: totals, histograms, and how two snapshots differ.

Reads only. Every list goes by key, and what could grow without end is looked at up to a limit that is told.
Sums over rewards leave out those that are `hidden` from who asks (`blindness`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.db.models import Avg, Count, F, Q, QuerySet, Sum, Value
from django.db.models.functions import Ceil, Greatest, Least

from apps.accounts.models import Project
from apps.core.errors import InvalidInput
from apps.core.ids import is_id
from apps.core.paging import Page, page_newest_first
from apps.trajectories.blindness import NOTHING, Hidden
from apps.trajectories.datasets.models import Dataset, DatasetMember, Snapshot, SnapshotEntry
from apps.trajectories.models import Trajectory

SAMPLE = 10_000  # members that a dataset's totals look at: the latest
BINS = 10  # of rewards, from -1 to 1
MAX_PAGE = 200


@dataclass(frozen=True, kw_only=True)
class Bin:
    """How many rewards lie in one tenth of -1 to 1. `low` belongs to the bin before, but for -1."""

    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over trajectories; rewards over `n_rewarded` of them. `is_partial`: over the latest SAMPLE only."""

    n_trajectories: int
    n_rewarded: int
    mean_reward: float | None
    n_steps: int
    n_prompt_tokens: int
    n_completion_tokens: int
    histogram: tuple[Bin, ...]
    is_partial: bool = False


def list_datasets(project: Project, *, before: str | None, limit: int) -> Page[Dataset]:
    """Return one page, newest first."""
    return page_newest_first(Dataset.objects.filter(project=project), before=before, limit=limit)


def list_members(dataset: Dataset, *, before: str | None, limit: int) -> Page[Trajectory]:
    """Return one page of the trajectories in the dataset, the newest first."""
    rows = Trajectory.objects.of_project(dataset.project).filter(memberships__dataset=dataset)
    return page_newest_first(rows, before=before, limit=limit)


def list_snapshots(dataset: Dataset, *, before: str | None, limit: int, hidden: Hidden = NOTHING) -> Page[Snapshot]:
    """Return one page, newest first, as `hide_rewards` shows them. A snapshot that is being taken is none yet."""
    rows = Snapshot.objects.filter(dataset=dataset).exclude(checksum="").select_related("dataset")
    page = page_newest_first(rows, before=before, limit=limit)
    hide_rewards(page.items, hidden=hidden)
    return page


def list_newest_snapshots(project: Project, *, limit: int) -> list[Snapshot]:
    """Return the newest snapshots of all the project's datasets, to choose from; no rewards are told."""
    rows = Snapshot.objects.filter(dataset__project=project).exclude(checksum="").select_related("dataset")
    return list(rows.order_by("-pk")[:limit])


def hide_rewards(snapshots: Sequence[Snapshot], *, hidden: Hidden) -> None:
    """Have those that hold `hidden` trajectories say their mean reward over the others, and no checksum: whoever knows
    the rest of what it is made of could guess a reward until it fits. For showing only, never to be saved.
    """
    entries = SnapshotEntry.objects.filter(snapshot__in=snapshots).order_by()
    holding = set(entries.filter(trajectory_id__in=hidden).values_list("snapshot_id", flat=True)) if hidden else set()
    others = entries.filter(snapshot__in=holding).exclude(trajectory_id__in=hidden).values_list("snapshot_id")
    sums = {pk: seen for pk, *seen in others.annotate(Count("reward"), Avg("reward"))} if holding else {}
    for snapshot in snapshots:
        if snapshot.pk in holding:
            snapshot.n_rewarded, snapshot.mean_reward = sums.get(snapshot.pk, (0, None))
            snapshot.checksum = ""


@dataclass(frozen=True, kw_only=True)
class EntryPage:
    """Entries in order of the trajectories' ids; `next_after` is the trajectory to ask for the next page with."""

    items: list[SnapshotEntry]
    next_after: str | None


def list_entries(snapshot: Snapshot, *, after: str | None, limit: int) -> EntryPage:
    """Return one page of a snapshot's entries."""
    rows = SnapshotEntry.objects.filter(snapshot=snapshot)
    if after:
        rows = rows.filter(trajectory_id__gt=_check_after(after))
    found = list(rows.order_by("trajectory_id")[: limit + 1])
    return EntryPage(items=found[:limit], next_after=found[limit - 1].trajectory_id if len(found) > limit else None)


def read_totals(dataset: Dataset, *, hidden: Hidden = NOTHING) -> Totals:
    """Return the sums over the dataset's latest trajectories."""
    latest = DatasetMember.objects.filter(dataset=dataset).order_by("-trajectory_id").values("trajectory_id")[:SAMPLE]
    rows = Trajectory.objects.filter(pk__in=latest)
    sums = rows.aggregate(
        n_rewarded=Count("reward", filter=~Q(pk__in=hidden)),
        mean_reward=Avg("reward", filter=~Q(pk__in=hidden)),
        n_steps=Sum("n_steps", default=0),
        n_prompt_tokens=Sum("n_prompt_tokens", default=0),
        n_completion_tokens=Sum("n_completion_tokens", default=0),
    )
    bins = rows.exclude(reward=None).exclude(pk__in=hidden).order_by().values(bin=_bin_of()).annotate(n=Count("pk"))
    counts = {int(row["bin"]): row["n"] for row in bins}
    is_partial = dataset.n_trajectories > SAMPLE
    return Totals(n_trajectories=dataset.n_trajectories, histogram=_fill_bins(counts), is_partial=is_partial, **sums)


def read_histogram(snapshot: Snapshot, *, hidden: Hidden = NOTHING) -> tuple[Bin, ...]:
    """Return how a snapshot's rewards are spread, over its latest trajectories."""
    rows = list_latest(snapshot).exclude(reward=None).exclude(trajectory_id__in=hidden).order_by()
    return _fill_bins({int(row["bin"]): row["n"] for row in rows.values(bin=_bin_of()).annotate(n=Count("pk"))})


def list_latest(snapshot: Snapshot) -> QuerySet[SnapshotEntry]:
    """Return the entries that sums look at: those of its latest trajectories."""
    latest = SnapshotEntry.objects.filter(snapshot=snapshot).order_by("-trajectory_id").values("pk")[:SAMPLE]
    return SnapshotEntry.objects.filter(pk__in=latest)


def _bin_of() -> Greatest:
    return Greatest(Least(Ceil((F("reward") + 1.0) * (BINS / 2)), Value(float(BINS))), Value(1.0))


def _fill_bins(counts: dict[int, int]) -> tuple[Bin, ...]:
    width = 2 / BINS
    return tuple(
        Bin(low=round(-1 + width * place, 2), high=round(-1 + width * (place + 1), 2), n=counts.get(place + 1, 0))
        for place in range(BINS)
    )


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How one trajectory differs between two snapshots: "added", "removed" or "changed"."""

    trajectory_id: str
    kind: str
    reward_before: float | None
    reward_after: float | None
    n_steps_before: int | None
    n_steps_after: int | None


@dataclass(frozen=True, kw_only=True)
class DiffPage:
    """Differences in order of the trajectories' ids."""

    items: list[Difference]
    next_after: str | None


KINDS = ("added", "removed", "changed")

_DIFF = """
    SELECT coalesce(old.trajectory_id, new.trajectory_id) AS id,
        CASE WHEN old.id IS NULL THEN 'added' WHEN new.id IS NULL THEN 'removed' ELSE 'changed' END AS kind,
        old.reward, new.reward, old.n_steps, new.n_steps
    FROM (SELECT * FROM trajectories_snapshotentry WHERE snapshot_id = %(before)s AND trajectory_id > %(after)s) old
    FULL JOIN (SELECT * FROM trajectories_snapshotentry WHERE snapshot_id = %(now)s AND trajectory_id > %(after)s) new
        ON old.trajectory_id = new.trajectory_id
    WHERE (
        old.id IS NULL OR new.id IS NULL OR old.content <> new.content
        OR (
            (old.reward, old.step_rewards, coalesce(old.judged, new.judged))
                IS DISTINCT FROM (new.reward, new.step_rewards, coalesce(new.judged, old.judged))
            AND old.trajectory_id <> ALL(%(hidden)s)
        )
    )
"""
_DIFF_PAGE = f"SELECT * FROM ({_DIFF}) difference WHERE kind = ANY(%(kinds)s) ORDER BY id LIMIT %(limit)s"  # noqa: S608
_DIFF_COUNTS = f"SELECT kind, count(*) FROM ({_DIFF}) difference GROUP BY kind"  # noqa: S608 (constants)


def diff_snapshots(
    before: Snapshot,
    now: Snapshot,
    *,
    kind: str = "",
    after: str | None = None,
    limit: int = 50,
    hidden: Hidden = NOTHING,
) -> DiffPage:
    """Return one page of what `now` has, lacks or rewards otherwise than `before`. A change of a step's reward, of
    corrections, preferences and hints or of the steps themselves is a change too; another judgement of what is `hidden`
    is none. Raises InvalidInput for snapshots
    of two projects.
    """
    _check_pair(before, now)
    if kind and kind not in KINDS:
        raise InvalidInput(f"kind={kind} is none of {', '.join(KINDS)}", field="kind")
    named: dict[str, Any] = {
        "before": before.pk,
        "now": now.pk,
        "after": _check_after(after) if after else "",
        "kinds": [kind] if kind else list(KINDS),
        "limit": limit + 1,
        "hidden": list(hidden),
    }
    with connection.cursor() as cursor:
        cursor.execute(_DIFF_PAGE, named)
        found = [
            Difference(
                trajectory_id=row[0],
                kind=row[1],
                reward_before=row[2],
                reward_after=row[3],
                n_steps_before=row[4],
                n_steps_after=row[5],
            )
            for row in cursor.fetchall()
        ]
    return DiffPage(items=found[:limit], next_after=found[limit - 1].trajectory_id if len(found) > limit else None)


def count_differences(before: Snapshot, now: Snapshot, *, hidden: Hidden = NOTHING) -> dict[str, int]:
    """Return how many trajectories were added, removed and changed, as `diff_snapshots` lists them."""
    _check_pair(before, now)
    counts = dict.fromkeys(KINDS, 0)
    if before.checksum == now.checksum:
        return counts
    with connection.cursor() as cursor:
        cursor.execute(_DIFF_COUNTS, {"before": before.pk, "now": now.pk, "after": "", "hidden": list(hidden)})
        return counts | dict(cursor.fetchall())


def _check_pair(before: Snapshot, now: Snapshot) -> None:
    if before.dataset.project_id != now.dataset.project_id:
        raise InvalidInput("only snapshots of one project can be compared", field="to")


def _check_after(after: str) -> str:
    if not is_id(after, "traj"):
        raise InvalidInput("after is no trajectory: take the `next_after` of the page before", field="after")
    return after
