"""Other people's models: providers with their credentials, and the names under which agents ask for their models."""

from django import forms
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect

from apps.accounts.models import Role
from apps.console.model_forms import CredentialForm, ProviderForm, TeacherForm
from apps.console.page import Page, project_page
from apps.console.snippets import curl
from apps.core.errors import NotFound, ServiceError
from apps.registry import providers, queries
from apps.registry.models import Engine, EngineState
from apps.registry.reconcile import check_provider


@project_page()
def teachers(page: Page) -> HttpResponse:
    """Providers and teachers of the project."""
    return _render(page)


@project_page("POST", role=Role.OWNER)
def add_provider(page: Page) -> HttpResponse:
    """Add a server with OpenAI's API, and ask it at once whether it takes the credential."""
    form = ProviderForm(page.request.POST)
    if not form.is_valid():
        return _render(page, provider_form=form, status=400)
    try:
        engine = providers.create_provider(project=page.project, actor=page.caller.name, **form.cleaned_data)
    except ServiceError as error:
        return _render(page, provider_form=_with_error(form, error), status=error.status)
    return _tell_state(page, check_provider(engine))


@project_page("POST", role=Role.OWNER)
def test_provider(page: Page, engine_id: str) -> HttpResponse:
    """Ask the provider now whether it answers."""
    return _tell_state(page, check_provider(_find_provider(page, engine_id)))


@project_page("POST", role=Role.OWNER)
def renew_credential(page: Page, engine_id: str) -> HttpResponse:
    """Enter the credential anew; the old one is forgotten."""
    engine = _find_provider(page, engine_id)
    form = CredentialForm(page.request.POST)
    if not form.is_valid():
        return _render(page, renewed={engine_id: form}, status=400)
    try:
        providers.change_provider(engine, changes=form.cleaned_data, actor=page.caller.name)
    except ServiceError as error:
        return _render(page, renewed={engine_id: _with_error(form, error)}, status=error.status)
    return _tell_state(page, check_provider(engine))


@project_page("POST", role=Role.OWNER)
def rest_provider(page: Page, engine_id: str) -> HttpResponse:
    """Send the provider no calls for now, or again."""
    engine = _find_provider(page, engine_id)
    is_enabled = not engine.is_enabled
    providers.change_provider(engine, changes={"is_enabled": is_enabled}, actor=page.caller.name)
    told = "takes calls again" if is_enabled else "rests: its teachers answer nobody until it is called back"
    return page.done(f"{engine.base_url} {told}.", to=page.url("teachers"))


@project_page("POST", role=Role.OWNER)
def remove_provider(page: Page, engine_id: str) -> HttpResponse:
    """Forget the provider and its credential."""
    engine = _find_provider(page, engine_id)
    providers.delete_provider(engine, actor=page.caller.name)
    return page.done(f"{engine.base_url} and its credential are forgotten.", to=page.url("teachers"))


@project_page("POST", role=Role.OWNER)
def add_teacher(page: Page) -> HttpResponse:
    """Let agents ask for a provider's model by a name."""
    form = TeacherForm(page.request.POST, providers=queries.list_providers(page.project))
    if not form.is_valid():
        return _render(page, teacher_form=form, status=400)
    values = form.cleaned_data
    try:
        teacher = providers.create_teacher(
            project=page.project,
            engine=_find_provider(page, values["engine"]),
            name=values["name"],
            model=values["model"],
            actor=page.caller.name,
        )
    except ServiceError as error:
        return _render(page, teacher_form=_with_error(form, error), status=error.status)
    return page.done(f"Agents of this project can ask for {teacher.name} now.", to=page.url("teachers"))


@project_page("POST", role=Role.OWNER)
def remove_teacher(page: Page, teacher_id: str) -> HttpResponse:
    """Take the name away; what was captured under it stays."""
    teacher = providers.find_teacher(teacher_id, caller=page.caller)
    if teacher.project_id != page.project.pk:
        raise NotFound("this project has no such teacher")
    providers.delete_teacher(teacher, actor=page.caller.name)
    return page.done(f"{teacher.name} is no model of this project any more.", to=page.url("teachers"))


def _find_provider(page: Page, engine_id: str) -> Engine:
    """Return a provider of this page's project. Raises NotFound."""
    engine = providers.find_provider(engine_id, caller=page.caller)
    if engine.project_id != page.project.pk:
        raise NotFound("this project has no such provider")
    return engine


def _tell_state(page: Page, engine: Engine) -> HttpResponse:
    if engine.state == EngineState.UP:
        return page.done(f"{engine.base_url} answers.", to=page.url("teachers"))
    messages.error(page.request, f"It does not answer yet: {engine.last_error}")
    return redirect(page.url("teachers"))


def _with_error(form: forms.Form, error: ServiceError) -> forms.Form:
    form.add_error(error.field if error.field in form.fields else None, error.message)
    return form


def _render(
    page: Page,
    *,
    provider_form: forms.Form | None = None,
    teacher_form: forms.Form | None = None,
    renewed: dict[str, forms.Form] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render the page; forms that were filled in wrongly (`renewed` by engine) keep what was typed but credentials."""
    engines = queries.list_providers(page.project)
    return page.render(
        "console/teachers.html",
        providers=[(engine, (renewed or {}).get(engine.id) or CredentialForm()) for engine in engines],
        teachers=queries.list_teachers(page.project),
        provider_form=provider_form or ProviderForm(),
        teacher_form=teacher_form or TeacherForm(providers=engines),
        curl=curl("GET", "/api/v1/teachers"),
        status=status,
    )
