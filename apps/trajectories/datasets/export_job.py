"""Writes an export: parts of some trajectories each, whole or not there, then one file of them.

A killed worker leaves whole parts and a row that says how far they reach; the next one goes on from there. Memory
holds one trajectory at a time, however many there are.
"""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic

import structlog
from django.utils import timezone

from apps.core.contracts.tasks import RUN_EXPORT
from apps.core.errors import ServiceError
from apps.trajectories.datasets.exporting import KEPT_DAYS, KIND, file_path
from apps.trajectories.datasets.jobs import (
    SLICE_S,
    Beat,
    LostJob,
    advance_job,
    claim_job,
    end_job,
    pause_job,
)
from apps.trajectories.datasets.models import Export, JobState
from apps.trajectories.datasets.row_files import join_files, write_rows
from apps.trajectories.datasets.rows import Row, Tally, render_rows
from apps.trajectories.datasets.sources import Item, read_items
from apps.trajectories.datasets.storage import check_room, is_disk_full, job_folder, remove_folder

log = structlog.get_logger(__name__)

PART = 100  # trajectories in a part

_rows = Export.objects


def run_export(export_id: str, *, part: int = PART, slice_s: float = SLICE_S) -> None:
    """Do the export or go on with it, for about `slice_s` seconds; then it waits for its next turn.

    Does nothing when another worker has it or it has ended.
    """
    claim = claim_job(_rows.all(), export_id)
    if not claim:
        return
    export = _rows.select_related("project", "snapshot").get(pk=export_id)
    try:
        ends = monotonic() + slice_s
        while items := read_items(export, after=export.cursor, limit=part):
            _write_part(export, items)
            if monotonic() > ends:
                pause_job(_rows.all(), export, RUN_EXPORT)
                return
        _finish(export)
    except LostJob:
        log.info("export.lost", export=export_id)
        if _rows.filter(pk=export_id, state=JobState.CANCELLED).exists():
            remove_folder(export_id, kind=KIND)
    except OSError as error:
        if not is_disk_full(error):
            raise
        _give_up(export, "the disk is full: make room, then start the export again")
    except ServiceError as error:
        _give_up(export, error.message)
    except Exception as error:  # whatever it is, a row that says "running" for ever would be worse
        log.exception("export.failed", export=export_id)
        _give_up(export, f"a fault of ours ({type(error).__name__}): the worker's log tells more, under {export_id}")


def _give_up(export: Export, error: str) -> None:
    try:
        end_job(_rows.all(), export, JobState.FAILED, error=error)
    except LostJob:
        return
    remove_folder(export.pk, kind=KIND)


def _part_path(export: Export, number: int) -> Path:
    return job_folder(export.pk, kind=KIND) / f"part-{number:06}.{export.file_format}"


def _write_part(export: Export, items: list[Item]) -> None:
    tally = Tally()
    path = _part_path(export, export.n_parts)
    write_rows(path, _render_items(export, items, tally), shape=export.shape, file_format=export.file_format)
    advance_job(
        _rows.all(),
        export,
        cursor=items[-1].trajectory_id,
        n_parts=export.n_parts + 1,
        n_done=export.n_done + len(items),
        n_gone=export.n_gone + sum(item.trajectory is None for item in items),
        n_rows=export.n_rows + tally.n_rows,
        n_left_out=export.n_left_out + tally.n_left_out,
        n_bytes=export.n_bytes + path.stat().st_size,
    )


def _render_items(export: Export, items: list[Item], tally: Tally) -> Iterator[Row]:
    beat = Beat(_rows.all(), export)
    for item in items:
        if item.trajectory is None:
            continue
        for row in render_rows(item.trajectory, shape=export.shape, pinned=item.pinned, tally=tally):
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
    end_job(_rows.all(), export, JobState.DONE, expires_at=ends, n_bytes=target.stat().st_size)
    for path in parts:
        path.unlink(missing_ok=True)


def _tell_beats(export: Export, parts: list[Path]) -> Iterator[Path]:
    beat = Beat(_rows.all(), export)
    for path in parts:
        yield path
        beat.tick()
