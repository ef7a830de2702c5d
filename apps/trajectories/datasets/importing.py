"""What people do with imports: start, find, cancel, read the report. The work itself is in `import_job.py`."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.db import transaction

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Agent, Project, Role
from apps.accounts.services import record_event
from apps.core.contracts.tasks import RUN_IMPORT
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.jobs import queue_task
from apps.core.live import publish_news
from apps.core.paging import Page, page_newest_first
from apps.trajectories.datasets.import_file import save_upload
from apps.trajectories.datasets.jobs import cancel_job, resend_jobs, sweep_folders
from apps.trajectories.datasets.models import Dataset, Import, ImportProblem, RowFormat, new_import_id
from apps.trajectories.datasets.services import hold_dataset
from apps.trajectories.datasets.storage import check_room, job_folder, remove_folder
from apps.trajectories.messages import clean_text
from apps.trajectories.models import Channel

KIND = "imports"
UPLOAD, LINES, INDEX = "upload", "lines.jsonl", "index"
_ROOM = 3.0  # the file, its lines, and what the database makes of it


@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """How a file is taken in. `channel` "": as the file says."""

    row_format: str = RowFormat.AUTO
    channel: str = ""
    is_all_or_none: bool = False
    is_again: bool = False


def start_import(
    *,
    agent: Agent,
    caller: Caller,
    chunks: Iterable[bytes],
    file_name: str,
    n_bytes: int,
    settings: ImportSettings,
    dataset: Dataset | None = None,
) -> Import:
    """Keep the file and queue its import into the agent's project, and into `dataset` if one is named.

    Raises Forbidden (not a trainer), InvalidInput (bad settings, an empty or packed file), TooLarge and DiskFull.
    """
    require_role(caller, agent.project, Role.TRAINER)
    _check_settings(settings, agent=agent, dataset=dataset)
    check_room(int(n_bytes * _ROOM), what="this import")
    import_id = new_import_id()
    try:
        n_bytes = save_upload(chunks, job_folder(import_id, kind=KIND) / UPLOAD)
        return _queue(import_id, agent, caller, settings, dataset=dataset, file_name=file_name, n_bytes=n_bytes)
    except BaseException:
        remove_folder(import_id, kind=KIND)
        raise


def _check_settings(settings: ImportSettings, *, agent: Agent, dataset: Dataset | None) -> None:
    if settings.row_format not in RowFormat.values:
        raise InvalidInput(f"format: it is one of {', '.join(RowFormat.values)}", field="format")
    if settings.channel and settings.channel not in Channel.values:
        raise InvalidInput(f"channel: it is one of {', '.join(Channel.values)}", field="channel")
    if dataset is not None and dataset.project_id != agent.project_id:
        raise NotFound(f"this project has no dataset {dataset.pk!r}")


@transaction.atomic
def _queue(
    import_id: str,
    agent: Agent,
    caller: Caller,
    settings: ImportSettings,
    *,
    dataset: Dataset | None,
    file_name: str,
    n_bytes: int,
) -> Import:
    if dataset is not None:
        hold_dataset(dataset)
    source = Import.objects.create(
        id=import_id,
        project_id=agent.project_id,
        agent=agent,
        dataset=dataset,
        row_format=settings.row_format,
        channel=settings.channel,
        is_all_or_none=settings.is_all_or_none,
        is_again=settings.is_again,
        file_name=clean_text(file_name)[:200],
        n_bytes=n_bytes,
        created_by=caller.name,
    )
    record_event(team=agent.project.team, actor=caller.name, action="import.started", object_id=source.pk)
    publish_news(source.project_id, kind="import", object_id=source.pk)
    queue_task(RUN_IMPORT, source.pk)
    return source


def find_import(*, caller: Caller, import_id: str, role: Role = Role.VIEWER) -> Import:
    """Return the import if the caller has `role` in its project. Another team's id looks like a missing one."""
    known = Import.objects.select_related("project__team", "agent", "dataset")
    source = known.filter(pk=import_id).first() if is_id(import_id, "impt") else None
    if source is None or caller.role_in(source.project) is None:
        raise NotFound(f"there is no import {import_id!r}")
    require_role(caller, source.project, role)
    return source


def list_imports(project: Project, *, before: str | None, limit: int) -> Page[Import]:
    """Return one page, newest first."""
    rows = Import.objects.filter(project=project).select_related("agent", "dataset", "project")
    return page_newest_first(rows, before=before, limit=limit)


@dataclass(frozen=True, kw_only=True)
class ProblemPage:
    """Problems in the order of their lines."""

    items: list[ImportProblem]
    next_after: int | None


def list_problems(source: Import, *, after: int, limit: int) -> ProblemPage:
    """Return one page of what was refused, and why."""
    found = list(source.problems.filter(line__gt=after).order_by("line")[: limit + 1])
    return ProblemPage(items=found[:limit], next_after=found[limit - 1].line if len(found) > limit else None)


def cancel_import(*, source: Import, caller: Caller) -> Import:
    """End an import that has not ended; what is imported stays. Raises Conflict when it has ended."""
    require_role(caller, source.project, Role.TRAINER)
    if not cancel_job(source):
        raise Conflict(f"this import has ended already: it is {source.state}")
    remove_folder(source.pk, kind=KIND)
    return source


def resend_imports() -> int:
    """Queue again what lost its message or its worker, and remove what a killed one left of an ended import."""
    sweep_folders(Import.objects.all(), kind=KIND)
    return resend_jobs(Import.objects.all(), RUN_IMPORT)
