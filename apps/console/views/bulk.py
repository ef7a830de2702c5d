"""Changes to many trajectories: starting one from the list, its progress, what failed, and its undo."""

from urllib.parse import urlencode

from django.http import HttpResponse

from apps.console.bulk_form import BulkForm
from apps.console.page import Page, project_page
from apps.console.queries.jobs import name_jobs, search_of
from apps.console.snippets import curl
from apps.core.errors import NotFound
from apps.core.paging import page_newest_first
from apps.feedback.bulk import ACTIONS, find_action
from apps.trajectories.bulk import services
from apps.trajectories.bulk.models import BulkJob

PER_PAGE = 50
FAILURES = 100


def start(page: Page, form: BulkForm, *, query: str | None) -> HttpResponse:
    """Begin a change to the chosen rows, or to all that the search finds. Raises ServiceError."""
    action = find_action(form.action)
    job = services.start_job(
        caller=page.caller,
        project=page.project,
        action=action,
        settings=form.read_settings(),
        ids=form.ids if query is None else (),
        query=query,
    )
    to = _address_of(page, job, came_from=page.request.GET.urlencode())
    return page.done("The job has begun. You may leave this page: it goes on.", to=to, passing=True)


def find_question(page: Page, form: BulkForm, *, query: str | None) -> str:
    """Return what is asked before such a change begins. Raises ServiceError where it cannot begin."""
    action = find_action(form.action)
    settings = action.check(page.project, form.read_settings())
    ids = list(form.ids) if query is None else []
    job = BulkJob(project=page.project, action=action.name, settings=settings, ids=ids, query=query or "")
    [(_, _, does)] = name_jobs(page.project, [job])
    undo = f" It can be undone for {services.UNDO_FOR.days} days." if action.has_undo else ""
    return f"{does}?{undo}"


def _address_of(page: Page, job: BulkJob, *, came_from: str) -> str:
    """Return the address of a job's page that leads back to the search it was begun from."""
    return page.url("bulk_job", job.pk) + (f"?{urlencode({'from': came_from})}" if came_from else "")


@project_page()
def jobs(page: Page) -> HttpResponse:
    """The project's jobs, newest first."""
    found = page_newest_first(
        services.list_jobs(page.project), before=page.request.GET.get("before") or None, limit=PER_PAGE
    )
    return page.render(
        "console/jobs.html",
        jobs=name_jobs(page.project, found.items),
        found=found,
        curl=curl("GET", "/api/v1/bulk-jobs"),
    )


@project_page()
def job(page: Page, job_id: str) -> HttpResponse:
    """One job: how far it is, what it could not do, its undo."""
    (found, action, title) = name_jobs(page.project, [_find_job(page, job_id)])[0]
    came_from = page.request.GET.get("from") or (urlencode({"q": found.query}) if found.query else "")
    after = page.request.GET.get("after", "")
    first = int(after) if after.isdecimal() and len(after) < 18 else 0
    failures = list(services.list_failures(found).filter(pk__gt=first).order_by("pk")[: FAILURES + 1])
    return page.render(
        "console/job.html",
        job=found,
        action=action,
        title=title,
        back=page.url("trajectories") + (f"?{came_from}" if came_from else ""),
        search=search_of(found),
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
    to = _address_of(page, found, came_from=page.request.GET.get("from", ""))
    return page.done("The job is taken back. You may leave this page: it goes on.", to=to, passing=True)


def _find_job(page: Page, job_id: str) -> BulkJob:
    found = services.find_job(caller=page.caller, job_id=job_id)
    if found.project_id != page.project.pk:
        raise NotFound("this project has no such job")
    return found
