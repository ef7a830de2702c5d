"""Training runs: list, launch, follow, cancel, resume."""

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import runs as queries
from apps.console.queries.datasets import list_snapshot_choices
from apps.console.queries.pool import read_outlook, read_readiness
from apps.console.queries.trajectories import agent_choices
from apps.console.run_form import SIZE, RunForm
from apps.console.run_form_words import BASIC
from apps.console.snippets import curl
from apps.core.errors import ServiceError
from apps.training.choices import OWN_SETTINGS
from apps.training.queries import find_hidden_steps
from apps.training.services import cancel_run, launch_run, resume_run


@project_page()
def runs(page: Page) -> HttpResponse:
    """The list, newest first."""
    found = queries.list_runs(page.project, before=page.request.GET.get("before") or None)
    return page.render("console/runs.html", found=found, tones=queries.TONES, curl=curl("GET", "/api/v1/runs"))


@project_page("GET", "HEAD", "POST")
def new_run(page: Page) -> HttpResponse:
    """The form that launches a run; `?from=<run>` starts from another run's settings."""
    if page.request.method == "POST":
        page.require(Role.TRAINER)
        return _launch(page)
    given = page.request.GET
    source = given.get("from")
    form = RunForm.of_run(queries.find_run(page.project, source)) if source else RunForm.of_choices(given)
    fits = not source and _has_no_size(page, form)
    if fits:
        form = RunForm.of_choices({name: value for name, value in given.items() if name not in SIZE})
    response = _render_form(page, form, fits=fits)
    if page.is_htmx:
        response["HX-Replace-Url"] = f"{page.url('new_run')}?{form.address}"
    return response


def _has_no_size(page: Page, form: RunForm) -> bool:
    """Say whether nobody has said a size: none was sent, or the one that fitted what the choice before had ready."""
    given = page.request.GET
    is_choice = page.request.headers.get("HX-Trigger-Name", "").partition(".")[2] in OWN_SETTINGS
    return given.keys().isdisjoint(SIZE) or (is_choice and given.get("taken_size") == form.size)


def _launch(page: Page) -> HttpResponse:
    form = RunForm.of_data(page.request.POST)
    if not form.errors:
        try:
            run = launch_run(
                project=page.project,
                caller=page.caller,
                recipe=form.recipe,
                selection=form.selection,
                name=form.name,
                idempotency_key=form.idempotency_key,
            )
        except ServiceError as error:
            form.add_error(error.field, error.message.removeprefix(f"{error.field}: "))
        else:
            return page.done(f"{run} is queued.", to=page.url("run", run.id), passing=True)
    return _render_form(page, form, status=400)


def _render_form(page: Page, form: RunForm, *, status: int = 200, fits: bool = False) -> HttpResponse:
    """Show the form; `fits`: nobody has said a size yet, and it is to be the one that waits for nothing."""
    readiness = read_readiness(page.project, recipe=form.recipe, selection=form.selection, hidden=page.hidden)
    if fits and (fitting := readiness.fit()).recipe:
        readiness = fitting
        form.take_size(fitting.recipe)
    form.snapshots = list_snapshot_choices(page.project)
    form.agents = tuple((agent.slug, agent.name) for agent in agent_choices(page.project))
    body = {"recipe": form.recipe, "selection": form.selection, "name": form.name}
    return page.render(
        "console/new_run.html",
        form=form,
        readiness=readiness,
        other_address=form.address_by(readiness.other_way),
        in_the_way=queries.find_active(page.project),
        outlook=read_outlook(page.project, recipe=form.recipe),
        curl=curl("POST", "/api/v1/runs", body),
        status=status,
    )


@project_page()
def run(page: Page, run_id: str) -> HttpResponse:
    """One run: state, curves, history."""
    found = queries.find_run(page.project, run_id)
    view = queries.read_run(found, hidden=page.hidden)
    return page.render(
        "console/run.html",
        run=found,
        view=view,
        seconds=queries.run_seconds(found),
        curve_data=queries.curve_data(view.curves),
        settings=RunForm.of_run(found).fields,
        basic=BASIC,
        curl=curl("GET", f"/api/v1/runs/{found.id}"),
    )


@project_page()
def batch(page: Page, run_id: str, step: int) -> HttpResponse:
    """What one step of a run was trained on."""
    found = queries.find_run(page.project, run_id)
    chosen = queries.find_batch(found, step, hidden=page.hidden)
    entries = queries.list_entries(chosen, hidden=page.hidden)
    kept_back = find_hidden_steps(found, hidden=page.hidden)
    return page.render("console/batch.html", run=found, batch=chosen, entries=entries, kept_back=kept_back)


@project_page("POST", role=Role.TRAINER)
def cancel(page: Page, run_id: str) -> HttpResponse:
    """Stop a run; its checkpoint stays. One that is queued ends at once."""
    found = cancel_run(run=queries.find_run(page.project, run_id), caller=page.caller)
    kept = "Its last checkpoint stays." if found.steps_done else "It had done no training step yet."
    message = f"Cancelled. {kept}" if found.is_final else "Stopping after a checkpoint."
    return page.done(message, to=page.url("run", run_id), passing=not found.is_final)


@project_page("POST", role=Role.TRAINER)
def resume(page: Page, run_id: str) -> HttpResponse:
    """Go on from the last checkpoint."""
    found = resume_run(run=queries.find_run(page.project, run_id), caller=page.caller)
    way = "goes on from its last checkpoint" if found.steps_done else "begins anew"
    return page.done(f"Queued again; it {way}.", to=page.url("run", run_id), passing=True)
