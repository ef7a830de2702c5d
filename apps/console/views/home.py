"""The list of projects, a project's home, and short links to anything by its id."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.console.forms import ProjectForm
from apps.console.page import Page, project_page
from apps.console.queries import home as queries
from apps.console.queries.links import find_address
from apps.console.replies import refuse
from apps.console.snippets import base_url, first_calls
from apps.core.errors import Forbidden, ServiceError
from apps.registry.services import open_project

PLACEHOLDER = "claw-…"


@require_http_methods(["GET", "HEAD", "POST"])
@login_required
def projects(request: HttpRequest) -> HttpResponse:
    """All projects of the person; make one."""
    assert isinstance(request.user, User)  # noqa: S101 (login_required stands before)
    teams, bases = request.user.owned_teams(), queries.list_bases(request.user)
    if request.method != "POST":
        return _render_projects(request, request.user, ProjectForm(teams=teams, bases=bases))
    if not bases:
        return refuse(request, Forbidden("Only an owner of a team makes its projects. Ask one."))
    form = ProjectForm(request.POST, teams=teams, bases=bases)
    if form.is_valid():
        try:
            project = open_project(actor=Caller(user=request.user).name, **form.cleaned_data)
        except ServiceError as error:
            form.add_error("name" if error.field == "name" else None, error.message)
        else:
            messages.success(request, f"{project.name} is here. Its agents come next.")
            return redirect("agents", project.slug)
    return _render_projects(request, request.user, form, status=400)


def _render_projects(request: HttpRequest, user: User, form: ProjectForm, *, status: int = 200) -> HttpResponse:
    told = {"cards": queries.list_projects(user), "title": "Projects", "form": form}
    return render(request, "console/projects.html", told, status=status)


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
