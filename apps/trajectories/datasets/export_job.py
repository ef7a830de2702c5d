"""Writes an export: parts of some trajectories each, whole or not there, then one file of them.

A killed worker leaves whole parts and a row that says how far they reach; the next one goes on from there. Memory
holds one trajectory at a time, however many there are.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from time import monotonic

from django.utils import timezone

from apps.core.contracts.tasks import RUN_EXPORT
from apps.trajectories.datasets.exporting import KEPT_DAYS, KIND, file_path
from apps.trajectories.datasets.jobs import (
    SLICE_S,
    Beat,
    advance_job,
    check_tries,
    claim_job,
    end_job,
    failing_in_words,
    pause_job,
)
from apps.trajectories.datasets.models import Export, JobState
from apps.trajectories.datasets.row_files import join_files, write_rows
from apps.trajectories.datasets.rows import Row, Source, Tally
from apps.trajectories.datasets.shapes import RowShape, render_rows
from apps.trajectories.datasets.sources import Item, find_hidden_from, read_items
from apps.trajectories.datasets.storage import check_room, job_folder, remove_folder

PART = 100  # trajectories in a part


def run_export(export_id: str, *, shapes: Mapping[str, RowShape], part: int = PART, slice_s: float = SLICE_S) -> None:
    """Do the export or go on with it, for about `slice_s` seconds; then it waits for its next turn.

    Does nothing when another worker has it or it has ended.
    """
    if not claim_job(Export.objects.all(), export_id):
        return
    export = Export.objects.select_related("project", "snapshot", "author").get(pk=export_id)
    with failing_in_words(export, again="start the export again"):
        check_tries(export)
        _work(export, shapes[export.shape], part=part, ends=monotonic() + slice_s)
    if export.state in {JobState.FAILED, JobState.CANCELLED}:
        remove_folder(export_id, kind=KIND)


def _work(export: Export, shape: RowShape, *, part: int, ends: float) -> None:
    while items := read_items(export, shape, after=export.cursor, limit=part):
        _write_part(export, shape, items)
        if monotonic() > ends:
            pause_job(export, RUN_EXPORT)
            return
    _finish(export)


def _part_path(export: Export, number: int) -> Path:
    return job_folder(export.pk, kind=KIND) / f"part-{number:06}.{export.file_format}"


def _write_part(export: Export, shape: RowShape, items: list[Item]) -> None:
    tally = Tally()
    path = _part_path(export, export.n_parts)
    write_rows(path, _render_items(export, shape, items, tally), shape=export.shape, file_format=export.file_format)
    advance_job(
        export,
        cursor=items[-1].trajectory_id,
        n_parts=export.n_parts + 1,
        n_done=export.n_done + len(items),
        n_gone=export.n_gone + sum(item.trajectory is None and not item.is_hidden for item in items),
        n_hidden=export.n_hidden + sum(item.is_hidden for item in items),
        n_rows=export.n_rows + tally.n_rows,
        n_left_out=export.n_left_out + tally.n_left_out,
        n_bytes=export.n_bytes + path.stat().st_size,
    )


def _render_items(export: Export, shape: RowShape, items: list[Item], tally: Tally) -> Iterator[Row]:
    beat, hidden = Beat(export), find_hidden_from(export)
    for item in items:
        if item.trajectory is None:
            continue
        source = Source(trajectory=item.trajectory, pinned=item.pinned, tally=tally, hidden=hidden)
        for row in render_rows(source, shape):
            yield row
            beat.tick()


def _finish(export: Export) -> None:
    """Make one file of the parts. Killed in between, the next worker finds the parts or the file."""
    target = file_path(export)
    parts = [_part_path(export, number) for number in range(export.n_parts)]
    if not target.exists():
        check_room(export.n_bytes, what="joining the parts")
        join_files(_tell_beats(export, parts), target, shape=export.shape, file_format=export.file_format)
    ends = timezone.now() + timedelta(days=KEPT_DAYS)
    n_lost = max(0, export.n_total - export.n_done)  # the search or dataset had them when it was started
    end_job(
        export,
        JobState.DONE,
        expires_at=ends,
        n_bytes=target.stat().st_size,
        n_done=export.n_done + n_lost,
        n_gone=export.n_gone + n_lost,
    )
    for path in parts:
        path.unlink(missing_ok=True)


def _tell_beats(export: Export, parts: list[Path]) -> Iterator[Path]:
    beat = Beat(export)
    for path in parts:
        yield path
        beat.tick()
