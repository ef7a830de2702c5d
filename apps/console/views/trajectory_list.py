"""The list of trajectories: its search, its look, and the names that people give to searches."""

from typing import Any
from urllib.parse import quote, urlencode

from django.http import HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme

from apps.accounts.models import Role
from apps.console import table_look
from apps.console.bulk_form import BulkForm
from apps.console.page import Page, project_page
from apps.console.queries import trajectories as queries
from apps.console.queries.filters import list_selects, read_filters
from apps.console.queries.imports import find_imported
from apps.console.replies import with_toast
from apps.console.snippets import curl
from apps.console.views import bulk
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound, ServiceError
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.services import list_graders
from apps.feedback.queues.services import list_open_queues
from apps.trajectories.bulk.actions import DELETE
from apps.trajectories.bulk.services import UNDO_FOR
from apps.trajectories.search import views as saved_views
from apps.trajectories.search.fields import FIELDS
from apps.trajectories.search.language import Filter, Query, SearchError
from apps.trajectories.search.models import SavedView
from apps.trajectories.search.services import Found, TooSlow, find_strangers


@project_page("GET", "HEAD", "POST")
def trajectories(page: Page) -> HttpResponse:
    """The list, newest first; its filters are its address. A search that is wrong is shown with the place marked. What
    is to be done with its rows, or the name of a new view, is sent to the same address, and is shown again where it
    cannot be done.
    """
    if page.request.method != "POST":
        return _answer_form(page) or _render_list(page, BulkForm())
    if "save_view" in page.request.POST:
        return _save_view(page)
    try:
        return _do_with_rows(page)
    except Forbidden:
        raise
    except ServiceError as error:
        return _render_list(page, BulkForm.of_data(page.request.POST, refused=error), status=error.status)


def _answer_form(page: Page) -> HttpResponse | None:
    """Lead from what the form of the search sent to the address of what it says; None for any other address."""
    filters = read_filters(page.request.GET)
    if filters.was is None:
        return None
    try:
        return HttpResponseRedirect(_address_of(page, filters.showing(filters.read_query()).q))
    except SearchError:
        return None


def _do_with_rows(page: Page) -> HttpResponse:
    """Change the chosen rows, or all that the search finds; or go to the form of a new export with them in it."""
    data = page.request.POST
    form = BulkForm.of_data(data)
    is_all = data.get("scope") == "all"
    if not is_all and not form.ids:
        raise InvalidInput("choose at least one row, or all that the search finds", field="id")
    if "export" in data:
        page.require(Role.TRAINER)
        chosen = Query(terms=(Filter(field="id", operator=":", values=form.ids),))
        return HttpResponseRedirect(f"{page.url('exports')}?{urlencode({'q': str(chosen)})}#new-title")
    query = str(read_filters(page.request.GET).read_query()) if is_all else None
    if "unasked" in data and (is_all or form.action == DELETE.name):
        return page.ask(bulk.find_question(page, form, query=query))
    return bulk.start(page, form, query=query)


def _save_view(page: Page) -> HttpResponse:
    """Give the search on the page a name."""
    page.require(Role.REVIEWER)
    named = {name: page.request.POST.get(name, "") for name in ("name", "query")}
    try:
        view = saved_views.save_view(caller=page.caller, project=page.project, **named)
    except (InvalidInput, Conflict) as error:
        given = {"view_name": named["name"], "view_fault": error}
        return _render_list(page, BulkForm(), status=error.status, **given)
    return page.done(f"Saved as “{view.name}”", to=_address_of(page, view.query))


def _render_list(page: Page, form: BulkForm, *, status: int = 200, **more: Any) -> HttpResponse:
    filters = read_filters(page.request.GET)
    fault: SearchError | TooSlow | None = None
    query = Query()
    strip = None
    try:
        query = filters.read_query()
        filters = filters.showing(query)
        found = queries.list_trajectories(page.project, query, before=filters.before, hidden=page.hidden)
        strip = None if found.is_walked else queries.read_strip(page.project, query, hidden=page.hidden)
    except (SearchError, TooSlow) as error:
        fault = error
        found = Found(items=[], next_before=None)
    return page.render(
        "console/trajectories.html",
        status=fault.status if fault else status,
        bulk=form,
        undo_days=UNDO_FOR.days,
        found=found,
        imported=find_imported(found.items),
        filters=filters,
        strip=strip,
        fault=fault,
        strangers=find_strangers(project=page.project, query=query),
        fields=FIELDS.values(),
        look=table_look.read_look(page.user),
        densities=table_look.DENSITIES.items(),
        selects=list_selects(filters, agents=queries.agent_choices(page.project)),
        actions=[action for action in ACTIONS.values() if page.role.includes(action.role)],
        datasets=list(page.project.datasets.order_by("name")[:100]),
        queues=list_open_queues(page.project),
        graders=list_graders(page.project)[:100],
        curl=curl("GET", f"/api/v1/trajectories?q={quote(str(query))}" if query.terms else "/api/v1/trajectories"),
        **_read_views(page, str(query)),
        **more,
    )


def _read_views(page: Page, query: str) -> dict[str, Any]:
    views = saved_views.list_views(page.project)
    return {
        "views": [(view, saved_views.may_change(page.caller, view)) for view in views],
        "gone_views": saved_views.list_restorable(page.project),
        "query": query,
    }


@project_page("POST")
def look(page: Page) -> HttpResponse:
    """Keep which columns this person wants to see, and how dense; or how wide they are, when a script says so."""
    given = page.request.POST
    if "widths" in given:
        table_look.keep_widths(page.user, widths=given["widths"])
        return HttpResponse(status=204)
    table_look.keep_look(page.user, columns=given.getlist("column"), density=given.get("density", ""))
    address = given.get("next", "")
    is_here = url_has_allowed_host_and_scheme(address, allowed_hosts=None)
    return HttpResponseRedirect(address if is_here else page.url("trajectories"))


@project_page("POST", role=Role.REVIEWER)
def delete_view(page: Page, view_id: str) -> HttpResponse:
    """Take a saved view away."""
    view = _find_view(page, view_id)
    saved_views.delete_view(caller=page.caller, view=view)
    return _after_view(page, f"“{view.name}” deleted", undo=page.url("restore_view", view.pk))


@project_page("POST", role=Role.REVIEWER)
def restore_view(page: Page, view_id: str) -> HttpResponse:
    """Undo a deletion."""
    view = saved_views.restore_view(caller=page.caller, view=_find_view(page, view_id))
    return _after_view(page, f"“{view.name}” is back", undo="")


def _find_view(page: Page, view_id: str) -> SavedView:
    view = saved_views.find_view(caller=page.caller, view_id=view_id)
    if view.project_id != page.project.pk:
        raise NotFound("this project has no such view")
    return view


def _after_view(page: Page, message: str, *, undo: str) -> HttpResponse:
    query = page.request.POST.get("query", "")
    if not page.is_htmx:
        return page.done(message, to=_address_of(page, query))
    response = page.render("console/parts/saved_views.html", **_read_views(page, query))
    return with_toast(response, message, undo=undo, undo_target="#saved-views")


def _address_of(page: Page, query: str) -> str:
    return page.url("trajectories") + (f"?{urlencode({'q': query})}" if query else "")
