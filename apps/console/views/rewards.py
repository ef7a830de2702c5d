"""What may be said in a project and what it is worth: the score schema, the graders, the tokens of web pages."""

from django.http import HttpResponse

from apps.accounts.models import Role
from apps.accounts.services import find_agent
from apps.console.page import Page, project_page
from apps.console.queries.graders import read_rewards_page
from apps.console.schema_form import SchemaForm
from apps.console.snippets import base_url, curl
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.feedback.graders.kinds import KINDS
from apps.feedback.rescoring import change_schema
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import Schema
from apps.feedback.thumbs import services as thumbs

SNIPPET = """await fetch("{base}/api/v1/responses/" + responseId + "/thumb", {{
  method: "POST",
  headers: {{"Authorization": "Bearer {token}", "Content-Type": "application/json"}},
  body: JSON.stringify({{value: 1, end_user: "u-3f9"}}),
}});"""


@project_page()
def rewards(page: Page) -> HttpResponse:
    """The score schema in force, the graders, and the tokens of web pages."""
    return _render(page)


@project_page("GET", "HEAD", "POST")
def schema(page: Page) -> HttpResponse:
    """Change the score schema: a new version, in force at once. `add` asks for one more row, `show` for what reviewers
    would see; neither changes anything."""
    before = find_schema(page.project.pk).fields
    if page.request.method != "POST":
        return _render_schema(page, SchemaForm.of_schema(before), before)
    page.require(Role.TRAINER)
    if not SchemaForm.is_whole(page.request.POST):
        form = SchemaForm.of_schema(before)
        form.place(InvalidInput("The form did not arrive whole, and nothing was changed. Here is the schema as it is"))
        return _render_schema(page, form, before, status=400)
    form, is_added = SchemaForm.of_data(page.request.POST), "add" in page.request.POST
    if is_added:
        form.add_row()
    definition = None if is_added else form.read_definition(before)
    if is_added or "show" in page.request.POST:
        return _render_schema(page, form, before)
    if definition is None:
        return _render_schema(page, form, before, status=400)
    try:
        _, job = change_schema(caller=page.caller, project=page.project, definition=definition, note=form.note)
    except ServiceError as error:
        form.place(error)
        return _render_schema(page, form, before, status=error.status)
    follow = page.url("bulk_job", job.pk)
    return page.done("In force. Rewards are computed anew.", to=page.url("rewards"), follow=follow)


def _render_schema(page: Page, form: SchemaForm, before: Schema, *, status: int = 200) -> HttpResponse:
    return page.render("console/schema.html", form=form, preview=form.preview(before), status=status)


@project_page("POST", role=Role.TRAINER)
def add_token(page: Page) -> HttpResponse:
    """Make a token that web pages may show."""
    data = page.request.POST
    agent = find_agent(caller=page.caller, project=page.project, slug=data.get("agent", ""))
    try:
        thumbs.create_token(
            caller=page.caller,
            agent=agent,
            name=data.get("name", "").strip(),
            origins=data.get("origins", "").split(),
        )
    except ServiceError as error:
        return _render(page, token_error=error.message, status=error.status)
    return page.done("The token is in the list below: pages may show it.", to=page.url("rewards"))


@project_page("POST", role=Role.TRAINER)
def switch_token_off(page: Page, token_id: str) -> HttpResponse:
    """Have a token open nothing any more."""
    token = thumbs.find_token(caller=page.caller, token_id=token_id)
    if token.agent.project_id != page.project.pk:
        raise NotFound("this project has no such token")
    thumbs.switch_off_token(caller=page.caller, token=token)
    return page.done("The token opens nothing any more.", to=page.url("rewards"))


def _render(page: Page, *, token_error: str = "", status: int = 200) -> HttpResponse:
    shown = read_rewards_page(page.project, hidden=page.hidden)
    token = next((token.token for token in shown.tokens if token.disabled_at is None), "clawthumb-…")
    return page.render(
        "console/rewards.html",
        shown=shown,
        kinds=KINDS.values(),
        agents=page.project.agents.order_by("name"),
        token_error=token_error,
        snippet=SNIPPET.format(base=base_url(), token=token),
        curl=curl("GET", "/api/v1/graders"),
        status=status,
    )
