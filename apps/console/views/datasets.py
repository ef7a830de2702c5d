"""Datasets, their snapshots, and what differs between two."""

from itertools import zip_longest
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponse
from django.shortcuts import redirect

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import datasets as queries
from apps.console.queries.pool import suggest_training
from apps.console.snippets import curl
from apps.core.errors import Conflict, InvalidInput, ServiceError
from apps.training.queries import read_uses
from apps.trajectories.datasets import queries as pool
from apps.trajectories.datasets import services
from apps.trajectories.datasets.models import Dataset, FileFormat, Shape
from apps.trajectories.datasets.sources import add_found_to_dataset
from apps.trajectories.search.services import warn_of_strangers

EXPORT_CHOICES: dict[str, Any] = {"shapes": Shape.choices, "file_formats": FileFormat.choices}


@project_page("GET", "HEAD", "POST")
def datasets(page: Page) -> HttpResponse:
    """The list, newest first, and the form of a new one."""
    if page.request.method == "POST":
        page.require(Role.REVIEWER)
        return _create(page)
    return _render_list(page)


def _create(page: Page) -> HttpResponse:
    name, description = page.request.POST.get("name", ""), page.request.POST.get("description", "")
    try:
        dataset = services.create_dataset(project=page.project, caller=page.caller, name=name, description=description)
    except ServiceError as error:
        return _render_list(page, error=error.message, name=name, description=description, status=error.status)
    return page.done(f"{dataset} is there; now put trajectories into it.", to=page.url("dataset", dataset.id))


def _render_list(
    page: Page, *, error: str = "", name: str = "", description: str = "", status: int = 200
) -> HttpResponse:
    before = page.request.GET.get("before") or None
    return page.render(
        "console/datasets.html",
        found=pool.list_datasets(page.project, before=before, limit=queries.PER_PAGE),
        form_error=error,
        name=name,
        description=description,
        curl=curl("GET", "/api/v1/datasets"),
        status=status,
    )


@project_page()
def dataset(page: Page, dataset_id: str) -> HttpResponse:
    """One dataset: what is in it, how its rewards are spread, its snapshots."""
    return _render_dataset(page, queries.find_dataset(page.project, page.caller, dataset_id))


def _render_dataset(page: Page, found: Dataset, *, error: str = "", status: int = 200) -> HttpResponse:
    before = page.request.GET.get("before") or None
    totals = pool.read_totals(found, hidden=page.hidden)
    snapshots = pool.list_snapshots(found, before=None, limit=queries.PER_PAGE, hidden=page.hidden).items
    return page.render(
        "console/dataset.html",
        dataset=found,
        totals=totals,
        bars=queries.draw_bars(totals.histogram),
        members=pool.list_members(found, before=before, limit=queries.PER_PAGE),
        before=before,
        snapshots=zip_longest(snapshots, snapshots[1:]),
        form_error=error,
        given=page.request.POST,
        curl=curl("GET", f"/api/v1/datasets/{found.id}"),
        status=status,
        **EXPORT_CHOICES,
    )


@project_page("POST", role=Role.REVIEWER)
def add_to_dataset(page: Page, dataset_id: str) -> HttpResponse:
    """Put trajectories in: those named, or all that a search finds."""
    found = queries.find_dataset(page.project, page.caller, dataset_id)
    query, ids = page.request.POST.get("query", "").strip(), page.request.POST.get("ids", "").split()
    warning = ""
    try:
        if bool(query) == bool(ids):
            raise InvalidInput("name trajectories by their ids, or give a search, and not both")
        if query:
            n = add_found_to_dataset(dataset=found, caller=page.caller, query=query)
            warning = warn_of_strangers(project=page.project, query=query)
        else:
            n = services.add_ids_to_dataset(dataset=found, caller=page.caller, ids=ids)
    except ServiceError as error:
        return _render_dataset(page, found, error=error.message, status=error.status)
    return page.done(f"{n} added.", to=page.url("dataset", dataset_id), warning=warning)


@project_page("POST", role=Role.REVIEWER)
def remove_from_dataset(page: Page, dataset_id: str) -> HttpResponse:
    """Take the chosen trajectories out."""
    found = queries.find_dataset(page.project, page.caller, dataset_id)
    ids = page.request.POST.getlist("trajectory")
    n = services.remove_from_dataset(dataset=found, caller=page.caller, ids=ids)
    return page.done(f"{n} taken out; snapshots keep them.", to=page.url("dataset", dataset_id))


@project_page("POST", role=Role.REVIEWER)
def describe_dataset(page: Page, dataset_id: str) -> HttpResponse:
    """Give the dataset another name or description."""
    found = queries.find_dataset(page.project, page.caller, dataset_id)
    told = {name: page.request.POST.get(name, "") for name in ("name", "description")}
    try:
        services.describe_dataset(dataset=found, caller=page.caller, **told)
    except (InvalidInput, Conflict) as error:
        return _render_dataset(page, found, error=error.message, status=error.status)
    return page.done("Saved.", to=page.url("dataset", dataset_id))


@project_page("POST", role=Role.TRAINER)
def delete_dataset(page: Page, dataset_id: str) -> HttpResponse:
    """Delete the dataset, if nothing refers to it; its trajectories stay."""
    found = queries.find_dataset(page.project, page.caller, dataset_id)
    try:
        services.delete_dataset(dataset=found, caller=page.caller)
    except Conflict as error:
        return _render_dataset(page, found, error=error.message, status=409)
    return page.done(f"{found.name} is deleted; its trajectories are where they were.", to=page.url("datasets"))


@project_page("POST", role=Role.REVIEWER)
def take_snapshot(page: Page, dataset_id: str) -> HttpResponse:
    """Freeze the dataset as it is."""
    found = queries.find_dataset(page.project, page.caller, dataset_id)
    try:
        taken = services.take_snapshot(dataset=found, caller=page.caller, note=page.request.POST.get("note", ""))
    except InvalidInput as error:
        return _render_dataset(page, found, error=error.message, status=400)
    return page.done(f"Snapshot {taken.number} is taken.", to=page.url("snapshot", taken.id))


@project_page()
def snapshot(page: Page, snapshot_id: str) -> HttpResponse:
    """One snapshot: what was selected, with which rewards, by whom, and what it can be compared with."""
    found = queries.find_snapshot(page.project, page.caller, snapshot_id)
    after = page.request.GET.get("after") or None
    entries = pool.list_entries(found, after=after, limit=queries.PER_PAGE)
    pool.hide_rewards([found], hidden=page.hidden)
    siblings = pool.list_snapshots(found.dataset, before=None, limit=queries.PER_PAGE).items
    return page.render(
        "console/snapshot.html",
        snapshot=found,
        bars=queries.draw_bars(pool.read_histogram(found, hidden=page.hidden)),
        frozen=queries.tell_frozen(found, hidden=page.hidden),
        is_partial=found.n_trajectories > pool.SAMPLE,
        sample=pool.SAMPLE,
        rows=queries.read_entries(page.project, entries.items),
        after=after,
        next_after=entries.next_after,
        uses=read_uses(found),
        others=[other for other in siblings if other.pk != found.pk],
        curl=curl("GET", f"/api/v1/snapshots/{found.id}/entries"),
        **EXPORT_CHOICES,
    )


@project_page()
def train_on_snapshot(page: Page, snapshot_id: str) -> HttpResponse:
    """Lead to the form of a run on it, set to what it can teach now."""
    found = queries.find_snapshot(page.project, page.caller, snapshot_id)
    suggested = suggest_training(page.project, snapshot=found, hidden=page.hidden)
    return redirect(f"{page.url('new_run')}?{urlencode(suggested)}")


@project_page()
def snapshot_diff(page: Page, snapshot_id: str) -> HttpResponse:
    """What a snapshot has, lacks or rewards otherwise than another."""
    now = queries.find_snapshot(page.project, page.caller, snapshot_id)
    base = queries.find_snapshot(page.project, page.caller, page.request.GET.get("base", ""))
    kind, after = page.request.GET.get("kind", ""), page.request.GET.get("after") or None
    found = pool.diff_snapshots(base, now, kind=kind, after=after, limit=queries.PER_PAGE, hidden=page.hidden)
    return page.render(
        "console/snapshot_diff.html",
        now=now,
        base=base,
        kind=kind,
        after=after,
        found=found,
        titles=queries.read_titles(page.project, [item.trajectory_id for item in found.items]),
        counts=pool.count_differences(base, now, hidden=page.hidden),
        curl=curl("GET", f"/api/v1/snapshots/{now.id}/diff?base={base.id}"),
    )
