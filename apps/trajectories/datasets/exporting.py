"""What people do with exports: start, find, cancel, fetch by an expiring link. The work is in `export_job.py`."""

from datetime import datetime, timedelta
from pathlib import Path

from django.core import signing
from django.db import transaction
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.tasks import RUN_EXPORT
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.core.paging import Page, page_newest_first
from apps.trajectories.datasets.jobs import cancel_job, resend_jobs, sweep_folders
from apps.trajectories.datasets.models import Dataset, Export, FileFormat, JobState, Snapshot
from apps.trajectories.datasets.row_files import dump_line
from apps.trajectories.datasets.rows import Source
from apps.trajectories.datasets.services import hold_dataset
from apps.trajectories.datasets.shapes import RowShape, render_rows
from apps.trajectories.datasets.sources import find_hidden_from, measure_source, read_items
from apps.trajectories.datasets.storage import check_room, job_folder, remove_folder

KIND = "exports"
LINK_S = 3600
KEPT_DAYS = 7
_SALT = "claw.export"
_SAMPLE = 20  # trajectories that the size is guessed from
_PARQUET_SHARE = 0.5  # of the size as JSON, at most
_COPIES = 2.2  # parts and the file made of them lie side by side for a while


@transaction.atomic
def start_export(
    *,
    project: Project,
    caller: Caller,
    shape: RowShape,
    file_format: str,
    snapshot: Snapshot | None = None,
    dataset: Dataset | None = None,
    query: str | None = None,
) -> Export:
    """Queue an export. Exactly one of snapshot, dataset and query ("": all) is its source. What the caller reviews
    blind is left out, and counted.

    Raises Forbidden (not a trainer), InvalidInput (no or several sources, an empty one, a bad search) and DiskFull.
    """
    require_role(caller, project, Role.TRAINER)
    if sum(source is not None for source in (snapshot, dataset, query)) != 1:
        raise InvalidInput("say what to export: one of snapshot, dataset and query", field="snapshot")
    home = snapshot.dataset if snapshot else dataset
    if home is not None and home.project_id != project.pk:
        raise NotFound(f"this project has no {'snapshot' if snapshot else 'dataset'} {(snapshot or home).pk!r}")
    if home is not None:
        hold_dataset(home)
    export = Export(
        project=project,
        snapshot=snapshot,
        dataset=dataset,
        query=query or "",
        shape=shape.name,
        file_format=FileFormat(file_format),
        created_by=caller.name,
        author=caller.user,
        n_total=0,
    )
    export.n_total, export.last_id = measure_source(export, shape)
    check_room(int(estimate_bytes(export, shape) * _COPIES), what="this export")
    export.save(force_insert=True)
    record_event(team=project.team, actor=caller.name, action="export.started", object_id=export.pk)
    publish_news(project.pk, kind="export", object_id=export.pk)
    queue_task(RUN_EXPORT, export.pk)
    return export


def estimate_bytes(export: Export, shape: RowShape) -> int:
    """Guess the file's size from the first trajectories."""
    items, hidden = read_items(export, shape, after="", limit=_SAMPLE), find_hidden_from(export)
    sources = [
        Source(trajectory=item.trajectory, pinned=item.pinned, hidden=hidden)
        for item in items
        if item.trajectory is not None
    ]
    rendered = [sum(len(dump_line(row)) for row in render_rows(source, shape)) for source in sources]
    share = _PARQUET_SHARE if export.file_format == FileFormat.PARQUET else 1.0
    return int(sum(rendered) / max(len(rendered), 1) * export.n_total * share)


def find_export(*, caller: Caller, export_id: str, role: Role = Role.VIEWER) -> Export:
    """Return the export if the caller has `role` in its project. Another team's id looks like a missing one."""
    known = Export.objects.select_related("project__team", "snapshot__dataset", "dataset")
    export = known.filter(pk=export_id).first() if is_id(export_id, "expt") else None
    if export is None or caller.role_in(export.project) is None:
        raise NotFound(f"there is no export {export_id!r}")
    require_role(caller, export.project, role)
    return export


def list_exports(project: Project, *, before: str | None, limit: int) -> Page[Export]:
    """Return one page, newest first."""
    rows = Export.objects.filter(project=project).select_related("snapshot__dataset", "dataset", "project")
    return page_newest_first(rows, before=before, limit=limit)


def cancel_export(*, export: Export, caller: Caller) -> Export:
    """End an export that has not ended. Raises Conflict when it has."""
    require_role(caller, export.project, Role.TRAINER)
    if not cancel_job(export):
        raise Conflict(f"this export has ended already: it is {export.state}")
    remove_folder(export.pk, kind=KIND)
    return export


def sign_link(export: Export) -> tuple[str, datetime] | None:
    """Return a token that opens the file to whoever has it, and when it ends; None while there is no file."""
    if export.state != JobState.DONE or export.expires_at is None:
        return None
    token = signing.TimestampSigner(salt=_SALT).sign(export.pk)
    return token, min(timezone.now() + timedelta(seconds=LINK_S), export.expires_at)


def open_link(export_id: str, *, token: str) -> tuple[Export, Path]:
    """Return the export and its file. Raises Forbidden for a wrong or old token, NotFound when the file is gone."""
    try:
        signed = signing.TimestampSigner(salt=_SALT).unsign(token, max_age=LINK_S)
    except signing.SignatureExpired as error:
        raise Forbidden("this link has expired: take a new one from the export") from error
    except signing.BadSignature as error:
        raise Forbidden("this link is not valid: take it from the export") from error
    export = Export.objects.filter(pk=export_id).first() if signed == export_id else None
    if export is None:
        raise Forbidden("this link is not valid: take it from the export")
    path = file_path(export)
    if export.state != JobState.DONE or not path.is_file():
        raise NotFound("the file of this export is not there any more: start a new one")
    return export, path


def file_path(export: Export) -> Path:
    """Where the whole file lies."""
    return job_folder(export.pk, kind=KIND) / export.file_name


def expire_exports() -> int:
    """Remove files whose time is over, and what killed workers left; returns how many files went."""
    sweep_folders(Export.objects.all(), kind=KIND, kept=JobState.DONE)
    due = Export.objects.filter(state=JobState.DONE, expires_at__lt=timezone.now())
    n = 0
    for export in due.only("id", "project_id")[:100]:
        if due.filter(pk=export.pk).update(state=JobState.EXPIRED):
            remove_folder(export.pk, kind=KIND)
            publish_news(export.project_id, kind="export", object_id=export.pk)
            n += 1
    return n


def resend_exports() -> int:
    """Queue again what lost its message or its worker."""
    return resend_jobs(Export.objects.all(), RUN_EXPORT)
