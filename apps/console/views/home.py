"""The list of projects, a project's home, and short links to anything by its id."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.console.page import Page, project_page
from apps.console.queries import home as queries
from apps.console.queries.links import find_address
from apps.console.replies import refuse
from apps.console.snippets import base_url, first_calls
from apps.core.errors import ServiceError

PLACEHOLDER = "claw-…"


@require_safe
@login_required
def projects(request: HttpRequest) -> HttpResponse:
    """All projects of the person."""
    assert isinstance(request.user, User)  # noqa: S101 (login_required stands before)
    cards = queries.list_projects(request.user)
    return render(request, "console/projects.html", {"cards": cards, "title": "Projects"})


@project_page()
def home(page: Page) -> HttpResponse:
    """The loop as five counts, what runs, and what to do first."""
    return page.render(
        "console/home.html",
        loop=queries.read_loop(page.project),
        voice=queries.find_voice(page.project).value,
        set_up=queries.read_set_up(page.project),
        runs=queries.active_runs(page.project),
        last_run=queries.last_run(page.project),
        trajectories=queries.latest_trajectories(page.project),
        engines_down=queries.engines_down(),
        base_url=base_url(),
        policy=queries.find_policy(page.project),
        **first_calls(secret=PLACEHOLDER, context=queries.context_length(page.project)),
    )


@require_safe
@login_required
def short_link(request: HttpRequest, object_id: str) -> HttpResponse:
    """Go to the page of any object that the person may see."""
    assert isinstance(request.user, User)  # noqa: S101 (login_required stands before)
    try:
        return redirect(find_address(Caller(user=request.user), object_id))
    except ServiceError as error:
        return refuse(request, error)
