"""Graders: making one and its versions, trying, switching on and off, filling back."""

from collections.abc import Sequence

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.grader_form import GraderForm
from apps.console.page import Page, project_page
from apps.console.queries.graders import list_judges, read_grader_page
from apps.console.snippets import curl
from apps.core.counted import count_of
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.feedback.graders import services
from apps.feedback.graders.backfilling import count_gradable
from apps.feedback.graders.judging import AskingSettings
from apps.feedback.graders.kinds import KINDS, find_kind
from apps.feedback.graders.models import Grader, GraderVersion
from apps.feedback.graders.services import GRADED_FIELDS
from apps.feedback.graders.taking_back import count_said, take_back_all
from apps.feedback.schemas import find_schema
from apps.trajectories.bulk.services import UNDO_FOR
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_strangers, warn_of_strangers

FIRST_KIND = "regex"  # what the form opens with: a rule that everybody understands, with one thing to fill in


@project_page("GET", "HEAD", "POST")
def new_grader(page: Page) -> HttpResponse:
    """Make a grader with its first version."""
    kind = find_kind(page.request.GET.get("kind", "") or page.request.POST.get("kind", "") or FIRST_KIND)
    if page.request.method != "POST":
        return _render_form(page, GraderForm.of_kind(kind))
    page.require(Role.TRAINER)
    form = GraderForm.of_data(kind, page.request.POST)
    draft, name = form.read_draft(), form.typed["name"]
    if status := _place_faults(form, services.find_faults(project=page.project, kind=kind, draft=draft, name=name)):
        return _render_form(page, form, status=status)
    try:
        version, secret = services.create_grader(
            caller=page.caller, project=page.project, name=name, kind=kind.name, draft=draft
        )
    except ServiceError as error:
        form.place(error)
        return _render_form(page, form, status=error.status)
    if secret:
        page.show_once(secret, of=version.grader_id)
    where = page.url("grader_secret" if secret else "grader", version.grader_id)
    return page.done("Made. Try it before you switch it on.", to=where)


@project_page()
def grader(page: Page, grader_id: str) -> HttpResponse:
    """One grader, its newest version or the one that `version` names."""
    found = _find(page, grader_id)
    given = page.request.GET.get("version", "")
    number = int(given) if given.isdecimal() and len(given) < 9 else _newest(found)
    return _render(page, services.find_version(found, number))


@project_page("GET", "HEAD", "POST")
def new_version(page: Page, grader_id: str) -> HttpResponse:
    """Make another version of a grader."""
    found = _find(page, grader_id)
    kind = find_kind(found.kind)
    if page.request.method != "POST":
        newest = services.find_version(found, _newest(found))
        return _render_form(page, GraderForm.of_version(kind, newest), grader=found)
    page.require(Role.TRAINER)
    form = GraderForm.of_data(kind, page.request.POST)
    draft = form.read_draft()
    if status := _place_faults(form, services.find_faults(project=page.project, kind=kind, draft=draft)):
        return _render_form(page, form, grader=found, status=status)
    try:
        version = services.add_version(caller=page.caller, grader=found, draft=draft)
    except ServiceError as error:
        form.place(error)
        return _render_form(page, form, grader=found, status=error.status)
    return page.done(
        f"Version {version.number} is made. Try it before you switch it on.", to=page.url("grader", found.pk)
    )


@project_page("POST", role=Role.TRAINER)
def dry_run(page: Page, grader_id: str, number: int) -> HttpResponse:
    """Try a version on a sample."""
    version = services.find_version(_find(page, grader_id), number)
    n_wanted = _read_count(page)
    services.start_dry_run(caller=page.caller, version=version, n_wanted=n_wanted)
    sample = count_of(n_wanted, "trajectory", "trajectories")
    words = f"{version} is tried on up to {sample}: below is what it would say. Nothing is labelled."
    return page.done(words, to=_address(page, version))


@project_page("POST", role=Role.TRAINER)
def hold_to_shape(page: Page, grader_id: str, number: int) -> HttpResponse:
    """Make a version that holds the judge's model to the shape of its answer, and try it."""
    held = services.hold_to_shape(caller=page.caller, version=services.find_version(_find(page, grader_id), number))
    services.start_dry_run(caller=page.caller, version=held)
    return page.done(f"{held} holds its model to the shape, and is tried now.", to=_address(page, held))


@project_page("POST", role=Role.TRAINER)
def switch_on(page: Page, grader_id: str, number: int) -> HttpResponse:
    """Have a version grade what is completed from now on."""
    version = services.find_version(_find(page, grader_id), number)
    services.switch_on(caller=page.caller, version=version)
    return page.done(f"{version} grades what is completed from now on.", to=_address(page, version))


@project_page("POST", role=Role.TRAINER)
def switch_off(page: Page, grader_id: str) -> HttpResponse:
    """Have a grader grade nothing new."""
    found = _find(page, grader_id)
    services.switch_off(caller=page.caller, grader=found)
    return page.done(f"{found.name} grades nothing new; its labels stay.", to=page.url("grader", found.pk))


@project_page("POST", role=Role.TRAINER)
def archive(page: Page, grader_id: str) -> HttpResponse:
    """Switch a grader off and put it away."""
    found = _find(page, grader_id)
    services.archive_grader(caller=page.caller, grader=found)
    return page.done(f"{found.name} is archived; its labels stay.", to=page.url("grader", found.pk))


@project_page("POST", role=Role.TRAINER)
def restore(page: Page, grader_id: str) -> HttpResponse:
    """Take a grader out of the archive."""
    found = _find(page, grader_id)
    services.restore_grader(caller=page.caller, grader=found)
    return page.done(f"{found.name} is back, switched off.", to=page.url("grader", found.pk))


@project_page("POST", role=Role.TRAINER)
def take_back(page: Page, grader_id: str) -> HttpResponse:
    """Take back all that a grader said."""
    job = take_back_all(caller=page.caller, grader=_find(page, grader_id))
    words = "What it said is being taken back. You may leave this page: it goes on."
    return page.done(words, to=page.url("bulk_job", job.pk), passing=True)


@project_page("POST", role=Role.TRAINER)
def backfill(page: Page, grader_id: str, number: int) -> HttpResponse:
    """Have a version grade what is in the pool already."""
    version = services.find_version(_find(page, grader_id), number)
    query = page.request.POST.get("query", "").strip()
    if "unasked" in page.request.POST:
        return page.ask(_ask_of_backfill(version, count_gradable(caller=page.caller, version=version, query=query)))
    services.start_backfill(caller=page.caller, version=version, query=query)
    warning = warn_of_strangers(project=page.project, query=query)
    return page.done("Filling back.", to=_address(page, version), warning=warning)


def _ask_of_backfill(version: GraderVersion, n: int | None) -> str:
    """Return the question with how many trajectories would be graded, None: too many to be counted."""
    if n == 0:
        return f"Fill back with {version} all the same? Nothing that is found now is left to grade."
    many = "all that is found, too many to be counted" if n is None else count_of(n, "trajectory", "trajectories")
    return f"Have {version} grade {many}? Their rewards follow; what it says can be taken back."


@project_page("POST", role=Role.TRAINER)
def cancel_backfill(page: Page, backfill_id: str) -> HttpResponse:
    """Stop a back-fill."""
    found = services.find_backfill(caller=page.caller, backfill_id=backfill_id)
    if found.version.grader.project_id != page.project.pk:
        raise NotFound("this project has no such back-fill")
    services.cancel_backfill(caller=page.caller, backfill=found)
    return page.done("Stopped; what it graded stays.", to=_address(page, found.version))


@project_page("GET", "POST")
def grader_secret(page: Page, grader_id: str) -> HttpResponse:
    """Show a webhook's new secret, this once; make it anew. Not the grader's own page, which other tabs load afresh."""
    found = _find(page, grader_id)
    if page.request.method == "POST":
        page.require(Role.TRAINER)
        page.show_once(services.renew_secret(caller=page.caller, grader=found), of=found.pk)
        return page.done("Calls are signed with the new secret.", to=page.url("grader_secret", found.pk))
    response = _render(page, services.find_version(found, _newest(found)), secret=page.take_shown_once(found.pk))
    response["Cache-Control"] = "no-store"
    return response


def _place_faults(form: GraderForm, faults: Sequence[ServiceError]) -> int:
    """Show each fault at its box, beside what was no number there; returns the answer's status, 0 when all is well."""
    is_readable = not form.errors
    for fault in faults:
        form.place(fault)
    return faults[0].status if faults and is_readable else 400 if form.errors else 0


def _find(page: Page, grader_id: str) -> Grader:
    found = services.find_grader(caller=page.caller, grader_id=grader_id)
    if found.project_id != page.project.pk or found.kind not in KINDS:
        raise NotFound("this project has no such grader")
    return found


def _newest(found: Grader) -> int:
    return services.list_versions(found)[0].number


def _read_count(page: Page) -> int:
    given = page.request.POST.get("n", "20").strip()
    if not given.isdecimal() or len(given) > 4:
        raise InvalidInput(f"try 1 to {services.MAX_DRY_RUN} trajectories", field="n")
    return int(given)


def _address(page: Page, version: GraderVersion) -> str:
    return f"{page.url('grader', version.grader_id)}?version={version.number}"


def _render(page: Page, version: GraderVersion, *, secret: str = "") -> HttpResponse:
    shown = read_grader_page(version.grader, version, hidden=page.hidden)
    address = f"/api/v1/graders/{version.grader_id}/versions/{version.number}/dry-runs"
    return page.render(
        "console/grader.html",
        shown=shown,
        n_said=count_said(version.grader, caller=page.caller, hidden=page.hidden),
        undo_days=UNDO_FOR.days,
        strangers=find_strangers(project=page.project, query=parse_query(version.query)),
        settings=GraderForm.of_version(shown.kind, version).settings,
        secret=secret,
        most=services.MAX_DRY_RUN,
        curl=curl("POST", address, {"n": 20}),
    )


def _render_form(page: Page, form: GraderForm, *, grader: Grader | None = None, status: int = 200) -> HttpResponse:
    schema = find_schema(page.project.pk).fields
    return page.render(
        "console/grader_form.html",
        form=form,
        grader=grader,
        kinds=KINDS.values(),
        fields=[spec for spec in schema.fields if spec.kind in GRADED_FIELDS],
        models=list_judges(page.project) if issubclass(form.kind.settings, AskingSettings) else [],
        curl=curl("GET", "/api/v1/grader-kinds"),
        status=status,
    )
