"""The model line: versions, aliases, promote and roll back."""

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.model_forms import SplitForm
from apps.console.page import Page, project_page
from apps.console.queries import models as queries
from apps.console.snippets import curl
from apps.core.errors import Conflict, InvalidInput
from apps.registry.models import AliasName
from apps.registry.queries import find_policy, list_teachers
from apps.registry.refresh import move_alias
from apps.registry.services import split_live, take_off_candidate


@project_page()
def models(page: Page) -> HttpResponse:
    """Versions, newest first, with what serves now."""
    return _render(page)


@project_page("POST", role=Role.TRAINER)
def promote(page: Page, number: int) -> HttpResponse:
    """Have a verified version answer from now on."""
    version = queries.find_version(page.project, number)
    move_alias(policy=version.policy, alias=AliasName.LIVE, version=version, actor=page.caller.name)
    message = f"{version} is live.{_tell_split(page)} Calls in flight finish on the version they began with."
    return page.done(message, to=page.url("models"))


@project_page("POST", role=Role.TRAINER)
def nominate(page: Page, number: int) -> HttpResponse:
    """Have a verified version stand beside live as its candidate."""
    version = queries.find_version(page.project, number)
    alias = move_alias(policy=version.policy, alias=AliasName.CANDIDATE, version=version, actor=page.caller.name)
    taken = (
        f"It answers {alias.live_share} % of the calls." if alias.live_share else "The split gives it a part of them."
    )
    message = f"{version} is the candidate: calls to {version.policy}@candidate are answered by it. {taken}"
    return page.done(message, to=page.url("models"))


@project_page("POST", role=Role.TRAINER)
def take_off(page: Page) -> HttpResponse:
    """Have no version be the candidate any more."""
    policy = find_policy(page.project)
    was = take_off_candidate(policy=policy, actor=page.caller.name)
    taken = f" Live answers its {was.live_share} % of the calls." if was.live_share else ""
    message = f"Version {was.version.number} is not the candidate any more: {policy}@candidate is refused.{taken}"
    # An undo would not bring the share back, so that one is asked about before.
    undo = "" if was.live_share else page.url("nominate", was.version.number)
    return page.done(message, to=page.url("models"), undo=undo)


@project_page("POST", role=Role.TRAINER)
def roll_back(page: Page) -> HttpResponse:
    """Have the previous version answer again."""
    version = queries.previous_version(page.project)
    move_alias(policy=version.policy, alias=AliasName.LIVE, version=version, actor=page.caller.name)
    return page.done(f"{version} is live again.{_tell_split(page)}", to=page.url("models"))


@project_page("POST", role=Role.TRAINER)
def split(page: Page) -> HttpResponse:
    """Share live's calls out among the aliases."""
    form = SplitForm(page.request.POST)
    if not form.is_valid():
        return _render(page, form=form, status=400)
    shares = form.shares()
    try:
        split_live(policy=find_policy(page.project), shares=shares, actor=page.caller.name)
    except (InvalidInput, Conflict) as error:
        form.add_error(error.field if error.field in form.fields else None, error.message)
        return _render(page, form=form, status=error.status)
    told = ", ".join(f"{share} % {name}" for name, share in shares.items() if share)
    return page.done(f"Calls are answered by {told}. A session stays with what it fell to.", to=page.url("models"))


def _tell_split(page: Page) -> str:
    """Return who answers which part of the calls now, to go on with; nothing where one version answers all."""
    split = queries.tell_split(queries.read_shares(page.project))
    return f" The split stays: {split}." if split else ""


def _render(page: Page, *, form: SplitForm | None = None, status: int = 200) -> HttpResponse:
    """Render the page; a split that was filled in wrongly stands in for the one that holds."""
    line = queries.read_model_line(page.project, hidden=page.hidden)
    return page.render(
        "console/models.html",
        line=line,
        split=form or (SplitForm(initial=line.shares) if line else None),
        n_teachers=len(list_teachers(page.project)),
        curl=curl("GET", "/api/v1/versions"),
        status=status,
    )
