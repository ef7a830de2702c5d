"""What the pages of datasets, exports and imports show: rows, bars, words for states. The room below owns the rest."""

from dataclasses import dataclass
from datetime import datetime

from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project
from apps.core.counted import count_of
from apps.core.errors import NotFound
from apps.feedback.exports import count_frozen
from apps.trajectories.blindness import Hidden
from apps.trajectories.datasets import exporting, importing, services
from apps.trajectories.datasets.models import Dataset, Export, Import, JobState, Shape, Snapshot, SnapshotEntry
from apps.trajectories.datasets.queries import Bin, list_newest_snapshots
from apps.trajectories.models import Trajectory

PER_PAGE = 50
SNAPSHOTS_SHOWN = 100
TONES = {
    JobState.QUEUED: "idle",
    JobState.RUNNING: "live",
    JobState.DONE: "good",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "idle",
    JobState.EXPIRED: "idle",
}
LEFT_OUT: dict[str, str] = {
    Shape.MESSAGES: "without messages",
    Shape.TOKENS: "without tokens",
    Shape.PREFERENCE: "without a common prompt, or deleted since,",
    Shape.SFT: "deleted since",
    Shape.HINTS: "deleted since",
}
_WIDTH, _HEIGHT = 300, 80


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a histogram, in a box of 300 by 80."""

    words: str
    n: int
    x: float
    y: float
    width: float
    height: float


def tell_what_came(source: Import) -> str:
    """Return what an import that is done brought; what it refused stands on its page by the line."""
    if not source.n_known and not source.n_refused:
        return "all of it came in" if source.n_imported else "there was nothing in it"
    words = [f"{source.n_imported:,} came in" if source.n_imported else "nothing new came in"]
    if source.n_known and not source.n_imported and not source.n_refused:
        words.append("the project had all of it already")
    elif source.n_known:
        words.append(f"{source.n_known:,} the project had already")
    if source.n_refused:
        words.append(f"{source.n_refused:,} {'was' if source.n_refused == 1 else 'were'} refused: why stands below")
    return ", ".join(words)


def draw_bars(bins: tuple[Bin, ...]) -> tuple[Bar, ...]:
    """Return a histogram as rectangles; none where there is nothing to count."""
    most = max((bin_.n for bin_ in bins), default=0)
    if not most:
        return ()
    width = _WIDTH / len(bins)
    return tuple(
        Bar(
            words=f"{bin_.low:+.1f} to {bin_.high:+.1f}",
            n=bin_.n,
            x=round(place * width + 1, 1),
            y=round(_HEIGHT * (1 - bin_.n / most), 1),
            width=round(width - 2, 1),
            height=round(_HEIGHT * bin_.n / most, 1),
        )
        for place, bin_ in enumerate(bins)
    )


@dataclass(frozen=True, kw_only=True)
class EntryRow:
    """One trajectory of a snapshot as it was; `title` is what the pool says now, "" when it is not there any more."""

    entry: SnapshotEntry
    title: str
    is_there: bool


def read_entries(project: Project, entries: list[SnapshotEntry]) -> list[EntryRow]:
    """Return the entries with their titles."""
    titles = read_titles(project, [entry.trajectory_id for entry in entries])
    return [
        EntryRow(entry=entry, title=titles.get(entry.trajectory_id, ""), is_there=entry.trajectory_id in titles)
        for entry in entries
    ]


def read_titles(project: Project, ids: list[str]) -> dict[str, str]:
    """Return by id what those trajectories are called that are still in the pool."""
    return dict(Trajectory.objects.of_project(project).filter(pk__in=ids).values_list("id", "title"))


def tell_frozen(snapshot: Snapshot, *, hidden: Hidden) -> str:
    """Return what the snapshot holds beside rewards: 3 preferences (2 of them corrections), 1 hint."""
    counts = count_frozen(snapshot, hidden=hidden)
    if counts is None:
        return "not kept: it was taken before snapshots kept them"
    n_preferences, n_corrections, n_hints = (counts[shape] for shape in (Shape.PREFERENCE, Shape.SFT, Shape.HINTS))
    parts = [count_of(n_preferences, "preference")] if n_preferences else []
    if n_corrections:
        parts[0] += f" ({n_corrections:,} of them {'a correction' if n_corrections == 1 else 'corrections'})"
    parts += [count_of(n_hints, "hint")] if n_hints else []
    return ", ".join(parts) or "none"


def list_choices(project: Project) -> list[Dataset]:
    """Return the datasets to choose from, the newest ones."""
    return list(Dataset.objects.filter(project=project).order_by("-pk")[:100])


def list_snapshot_choices(project: Project) -> tuple[tuple[str, str], ...]:
    """Return the newest snapshots as (id, words): `Refunds #3: 1,234 trajectories, 2026-01-31`."""
    found = list_newest_snapshots(project, limit=SNAPSHOTS_SHOWN)
    return tuple((one.pk, f"{one}: {_count(one)}, {one.created_at:%Y-%m-%d}") for one in found)


def _count(snapshot: Snapshot) -> str:
    return count_of(snapshot.n_trajectories, "trajectory", "trajectories")


def seconds_left(job: Export | Import, *, now: datetime | None = None) -> float | None:
    """Guess from its rate how long a running job still takes."""
    if job.state != JobState.RUNNING or job.started_at is None or not job.n_done or not job.n_total:
        return None
    passed = ((now or timezone.now()) - job.started_at).total_seconds()
    return passed / job.n_done * max(job.n_total - job.n_done, 0)


def find_dataset(project: Project, caller: Caller, dataset_id: str) -> Dataset:
    """Return a dataset of the project or raise NotFound."""
    dataset = services.find_dataset(caller=caller, dataset_id=dataset_id)
    _check_project(project, dataset.project_id, "dataset")
    return dataset


def find_snapshot(project: Project, caller: Caller, snapshot_id: str) -> Snapshot:
    """Return a snapshot of the project or raise NotFound."""
    snapshot = services.find_snapshot(caller=caller, snapshot_id=snapshot_id)
    _check_project(project, snapshot.dataset.project_id, "snapshot")
    return snapshot


def find_known_snapshot(project: Project, caller: Caller, snapshot_id: str) -> Snapshot | None:
    """Return a snapshot of the project, None when it has no such one."""
    try:
        return find_snapshot(project, caller, snapshot_id)
    except NotFound:
        return None


def find_export(project: Project, caller: Caller, export_id: str) -> Export:
    """Return an export of the project or raise NotFound."""
    export = exporting.find_export(caller=caller, export_id=export_id)
    _check_project(project, export.project_id, "export")
    return export


def find_import(project: Project, caller: Caller, import_id: str) -> Import:
    """Return an import of the project or raise NotFound."""
    source = importing.find_import(caller=caller, import_id=import_id)
    _check_project(project, source.project_id, "import")
    return source


def _check_project(project: Project, project_id: str, what: str) -> None:
    if project_id != project.pk:
        raise NotFound(f"this project has no such {what}")
