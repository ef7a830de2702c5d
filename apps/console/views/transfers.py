"""Exports and imports: start, follow, fetch, read the report."""

from django.http import HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from apps.accounts.models import Role
from apps.accounts.services import find_agent
from apps.console.page import Page, project_page
from apps.console.queries import datasets as queries
from apps.console.queries.trajectories import agent_choices
from apps.console.snippets import curl
from apps.console.views.datasets import EXPORT_CHOICES
from apps.core.errors import Conflict, InvalidInput, ServiceError
from apps.feedback.exports import find_shape
from apps.trajectories.datasets import exporting, importing
from apps.trajectories.datasets.models import FileFormat, RowFormat
from apps.trajectories.datasets.sources import warn_of_export
from apps.trajectories.models import Channel

ROW_FORMATS = {
    RowFormat.AUTO: "whatever each line is",
    RowFormat.CLAW: "our own export",
    RowFormat.OPENAI: "OpenAI chat",
    RowFormat.SHAREGPT: "ShareGPT",
    RowFormat.CLAW_R1: "Claw-R1 steps",
}


@project_page("GET", "HEAD", "POST")
def exports(page: Page) -> HttpResponse:
    """The list, newest first, and the form of a new one."""
    if page.request.method == "POST":
        page.require(Role.TRAINER)
        return _start_export(page)
    return _render_exports(page)


def _start_export(page: Page) -> HttpResponse:
    given = page.request.POST
    shape, file_format = given.get("shape", ""), given.get("format", "")
    snapshot_id, dataset_id = given.get("snapshot", ""), given.get("dataset", "")
    try:
        if file_format not in FileFormat.values:
            raise InvalidInput("choose the kind of file: jsonl or parquet")
        export = exporting.start_export(
            project=page.project,
            caller=page.caller,
            shape=find_shape(shape),
            file_format=file_format,
            snapshot=queries.find_snapshot(page.project, page.caller, snapshot_id) if snapshot_id else None,
            dataset=queries.find_dataset(page.project, page.caller, dataset_id) if dataset_id else None,
            query=None if snapshot_id or dataset_id else given.get("query", ""),
        )
    except ServiceError as error:
        return _render_exports(page, error=error.message, status=error.status)
    return page.done("The export is queued.", to=page.url("exports"), warning=warn_of_export(export))


def _render_exports(page: Page, *, error: str = "", status: int = 200) -> HttpResponse:
    before = page.request.GET.get("before") or None
    found = exporting.list_exports(page.project, before=before, limit=queries.PER_PAGE)
    return page.render(
        "console/exports.html",
        found=found,
        rows=[(one, queries.seconds_left(one), queries.LEFT_OUT[one.shape]) for one in found.items],
        tones=queries.TONES,
        form_error=error,
        given=page.request.POST,
        snapshot=queries.find_known_snapshot(page.project, page.caller, page.request.POST.get("snapshot", "")),
        query=page.request.POST.get("query", page.request.GET.get("q", "")),
        datasets=queries.list_choices(page.project),
        curl=curl("POST", "/api/v1/exports", {"query": "reward>0", "shape": "tokens", "format": "parquet"}),
        status=status,
        **EXPORT_CHOICES,
    )


@project_page("POST", role=Role.TRAINER)
def cancel_export(page: Page, export_id: str) -> HttpResponse:
    """End an export before its time."""
    export = queries.find_export(page.project, page.caller, export_id)
    exporting.cancel_export(export=export, caller=page.caller)
    return page.done("The export is cancelled.", to=page.url("exports"))


@project_page("GET", role=Role.TRAINER)
def export_file(page: Page, export_id: str) -> HttpResponse:
    """Go to the file by a fresh link."""
    export = queries.find_export(page.project, page.caller, export_id)
    link = exporting.sign_link(export)
    if link is None:
        raise Conflict(f"there is no file: the export is {export.state}")
    return redirect(f"{reverse('api-export-file', args=[export.pk])}?token={link[0]}")


@project_page("GET", "HEAD", "POST")
def imports(page: Page) -> HttpResponse:
    """The list, newest first, and the form that sends a file."""
    if page.request.method == "POST":
        page.require(Role.TRAINER)
        return _start_import(page)
    return _render_imports(page)


def _start_import(page: Page) -> HttpResponse:
    given, file = page.request.POST, page.request.FILES.get("file")
    dataset_id = given.get("dataset", "")
    try:
        if file is None:
            raise InvalidInput("choose a file")
        source = importing.start_import(
            agent=find_agent(caller=page.caller, project=page.project, slug=given.get("agent", "")),
            caller=page.caller,
            chunks=file.chunks(),
            file_name=file.name or "",
            n_bytes=file.size or 0,
            settings=importing.ImportSettings(
                row_format=given.get("row_format", RowFormat.AUTO),
                channel=given.get("channel", ""),
                is_all_or_none=given.get("on_error") == "all",
                is_again=bool(given.get("again")),
            ),
            dataset=queries.find_dataset(page.project, page.caller, dataset_id) if dataset_id else None,
        )
    except ServiceError as error:
        return _render_imports(page, error=error.message, status=error.status)
    return page.done("The file is being imported.", to=page.url("import", source.id), passing=True)


def _render_imports(page: Page, *, error: str = "", status: int = 200) -> HttpResponse:
    before = page.request.GET.get("before") or None
    return page.render(
        "console/imports.html",
        found=importing.list_imports(page.project, before=before, limit=queries.PER_PAGE),
        tones=queries.TONES,
        form_error=error,
        given=page.request.POST,
        agents=agent_choices(page.project),
        datasets=queries.list_choices(page.project),
        row_formats=ROW_FORMATS.items(),
        channels=Channel.choices,
        curl=curl("GET", "/api/v1/imports"),
        status=status,
    )


@project_page()
def import_report(page: Page, import_id: str) -> HttpResponse:
    """One import: how far it is, and each bad line by its number."""
    source = queries.find_import(page.project, page.caller, import_id)
    after = page.request.GET.get("after", "0")
    problems = importing.list_problems(
        source, after=int(after) if after.isdecimal() and len(after) < 18 else 0, limit=queries.PER_PAGE
    )
    return page.render(
        "console/import.html",
        source=source,
        problems=problems,
        came=queries.tell_what_came(source),
        left_s=queries.seconds_left(source),
        tones=queries.TONES,
        curl=curl("GET", f"/api/v1/imports/{source.id}/problems"),
    )


@project_page("POST", role=Role.TRAINER)
def cancel_import(page: Page, import_id: str) -> HttpResponse:
    """End an import before its time; what is imported stays."""
    source = queries.find_import(page.project, page.caller, import_id)
    importing.cancel_import(source=source, caller=page.caller)
    return page.done("The import is cancelled; what is imported stays.", to=page.url("import", import_id))
