"""The model line: versions, aliases, promote and roll back."""

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.console.page import Page, project_page
from apps.console.queries import models as queries
from apps.console.snippets import curl
from apps.registry.models import AliasName
from apps.registry.refresh import move_alias


@project_page()
def models(page: Page) -> HttpResponse:
    """Versions, newest first, with what serves now."""
    line = queries.read_model_line(page.project)
    return page.render("console/models.html", line=line, curl=curl("GET", "/api/v1/versions"))


@project_page("POST", role=Role.TRAINER)
def promote(page: Page, number: int) -> HttpResponse:
    """Have a verified version answer from now on."""
    version = queries.find_version(page.project, number)
    move_alias(policy=version.policy, alias=AliasName.LIVE, version=version, actor=page.caller.name)
    message = f"{version} is live. Calls in flight finish on the version they began with."
    return page.done(message, to=page.url("models"))


@project_page("POST", role=Role.TRAINER)
def roll_back(page: Page) -> HttpResponse:
    """Have the previous version answer again."""
    version = queries.previous_version(page.project)
    move_alias(policy=version.policy, alias=AliasName.LIVE, version=version, actor=page.caller.name)
    return page.done(f"Rolled back: {version} is live again.", to=page.url("models"))
