"""Changes to many trajectories: starting one from the list, its progress, what failed, and its undo."""

from typing import Any

from django.http import HttpResponse, QueryDict

from apps.console.page import Page, project_page
from apps.console.snippets import curl
from apps.core.errors import InvalidInput, NotFound
from apps.core.paging import page_newest_first
from apps.feedback.bulk import ACTIONS, find_action
from apps.trajectories.bulk import services
from apps.trajectories.bulk.models import BulkJob

PER_PAGE = 50
FAILURES = 100
GIVEN = {"reward": "value", "tag": "tag", "untag": "tag", "channel": "channel", "dataset": "dataset", "queue": "queue"}


@project_page("POST")
def start(page: Page) -> HttpResponse:
    """Begin a change to the chosen rows, or to all that the search on the page finds."""
    form = page.request.POST
    action = find_action(form.get("action", ""))
    is_all = form.get("scope") == "all"
    ids = [] if is_all else form.getlist("id")
    if not is_all and not ids:
        raise InvalidInput("choose at least one row, or all that the search finds", field="id")
    job = services.start_job(
        caller=page.caller,
        project=page.project,
        action=action,
        settings=_read_settings(action.name, form),
        ids=ids,
        query=form.get("query", "") if is_all else None,
    )
    return page.done(f"Started: {action.words}", to=page.url("bulk_job", job.pk), passing=True)


def _read_settings(action: str, form: QueryDict) -> dict[str, Any]:
    """Return what the action is told; fields of the other actions stand empty in the form."""
    name = GIVEN.get(action)
    if name is None:
        return {}
    text = form.get(name, "").strip()
    if name != "value":
        return {name: text}
    try:
        return {"value": float(text.replace("−", "-").replace(",", "."))}
    except ValueError:
        raise InvalidInput("a reward is a number from −1 to 1", field="value") from None


@project_page()
def jobs(page: Page) -> HttpResponse:
    """The project's jobs, newest first."""
    found = page_newest_first(
        services.list_jobs(page.project), before=page.request.GET.get("before") or None, limit=PER_PAGE
    )
    return page.render(
        "console/jobs.html",
        jobs=[(job, ACTIONS[job.action]) for job in found.items],
        found=found,
        curl=curl("GET", "/api/v1/bulk-jobs"),
    )


@project_page()
def job(page: Page, job_id: str) -> HttpResponse:
    """One job: how far it is, what it could not do, its undo."""
    found = _find_job(page, job_id)
    action = ACTIONS[found.action]
    after = page.request.GET.get("after", "")
    first = int(after) if after.isdecimal() and len(after) < 18 else 0
    failures = list(services.list_failures(found).filter(pk__gt=first).order_by("pk")[: FAILURES + 1])
    return page.render(
        "console/job.html",
        job=found,
        action=action,
        failures=failures[:FAILURES],
        next_after=failures[FAILURES - 1].pk if len(failures) > FAILURES else None,
        can_undo=services.can_undo(found, action),
        may_undo=services.may_undo(page.caller, found, action),
        undo_days=services.UNDO_FOR.days,
        curl=curl("GET", f"/api/v1/bulk-jobs/{found.pk}"),
    )


@project_page("POST")
def undo(page: Page, job_id: str) -> HttpResponse:
    """Take a whole job back."""
    found = _find_job(page, job_id)
    services.undo_job(caller=page.caller, job=found, action=ACTIONS[found.action])
    return page.done("Taking it back", to=page.url("bulk_job", found.pk), passing=True)


def _find_job(page: Page, job_id: str) -> BulkJob:
    found = services.find_job(caller=page.caller, job_id=job_id)
    if found.project_id != page.project.pk:
        raise NotFound("this project has no such job")
    return found
