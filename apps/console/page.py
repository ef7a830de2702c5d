"""The door of every page of a project: who is looking, at which project, with which role. Knows no page's content."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.html import format_html
from django.views.decorators.http import require_http_methods

from apps.accounts.access import Caller, find_project, require_role
from apps.accounts.models import Membership, Project, Role, User
from apps.console.replies import ask_to_log_in, find_form, refuse, with_toast
from apps.core.errors import ServiceError
from apps.core.live import find_newest
from apps.trajectories.blindness import Hidden, find_hidden

P = ParamSpec("P")

SECTIONS = {
    "project_home": "project_home",
    "people": "people",
    "agents": "agents",
    "agent": "agents",
    "new_key": "agents",
    "shown_key": "agents",
    "agent_policies": "agents",
    "change_capture": "agents",
    "change_limits": "agents",
    "trajectories": "trajectories",
    "trajectory": "trajectories",
    "correct_step": "trajectories",
    "diff": "trajectories",
    "playground": "trajectories",
    "keep_answer": "trajectories",
    "bulk_jobs": "trajectories",
    "bulk_job": "trajectories",
    "inbox": "trajectories",
    "raw_call": "trajectories",
    "datasets": "datasets",
    "dataset": "datasets",
    "add_to_dataset": "datasets",
    "describe_dataset": "datasets",
    "delete_dataset": "datasets",
    "take_snapshot": "datasets",
    "snapshot": "datasets",
    "snapshot_diff": "datasets",
    "exports": "datasets",
    "imports": "datasets",
    "import": "datasets",
    "review": "review",
    "new_review": "review",
    "review_settings": "review",
    "review_results": "review",
    "review_item": "review",
    "review_decide": "review",
    "review_preview": "review",
    "review_work": "review",
    "rewards": "rewards",
    "score_schema": "rewards",
    "add_thumb_token": "rewards",
    "new_grader": "rewards",
    "grader": "rewards",
    "new_grader_version": "rewards",
    "renew_grader_secret": "rewards",
    "runs": "runs",
    "new_run": "runs",
    "run": "runs",
    "batch": "runs",
    "models": "models",
    "split": "models",
    "teachers": "models",
    "add_provider": "models",
    "renew_credential": "models",
    "add_teacher": "models",
}


# A form that is to be asked for carries its question, or the mark that it is not asked yet; a script that asks takes
# them out, and so does the page that asks in its stead.
UNASKED = ("question", "unasked", "csrfmiddlewaretoken")
LONGEST_QUESTION = 500


@dataclass(frozen=True, kw_only=True)
class Page:
    """One request for a page of a project by a member of its team."""

    request: HttpRequest
    user: User
    caller: Caller
    project: Project
    role: Role
    since: int | None = None  # the number of the project's newest news, of a page that is to hear what comes after

    @property
    def is_htmx(self) -> bool:
        return bool(getattr(self.request, "htmx", False))

    @property
    def can_review(self) -> bool:
        return self.role.includes(Role.REVIEWER)

    @property
    def can_train(self) -> bool:
        return self.role.includes(Role.TRAINER)

    @property
    def can_own(self) -> bool:
        return self.role.includes(Role.OWNER)

    @cached_property
    def who_to_ask(self) -> str:
        """The words that stand on a button which this person may not press."""
        owners = Membership.objects.filter(team_id=self.project.team_id, role=Role.OWNER).select_related("user")
        names = ", ".join(membership.user.email for membership in owners[:3])
        return f"You are {self.role.label.lower()} here. Ask {names or 'an owner of the team'}."

    @cached_property
    def projects(self) -> list[Project]:
        """For the project switch."""
        return list(self.user.projects()[:50])

    @cached_property
    def hidden(self) -> Hidden:
        """The trajectories whose rewards, and what others said of them, are kept from this person now."""
        return find_hidden(self.caller, project_id=self.project.pk)

    def require(self, role: Role) -> None:
        """Raise Forbidden when the person's role is too small."""
        require_role(self.caller, self.project, role)

    def url(self, name: str, *args: str | int) -> str:
        """Return the address of another page of this project."""
        return reverse(name, args=[self.project.slug, *args])

    def render(self, template: str, *, status: int = 200, **context: Any) -> HttpResponse:
        """Render a page or a fragment."""
        match = self.request.resolver_match
        section = SECTIONS.get(match.url_name or "", "") if match else ""
        shared = {"page": self, "project": self.project, "section": section}
        return render(self.request, template, {**shared, **context}, status=status)

    def ask(self, question: str) -> HttpResponse:
        """Ask what the browser has not asked before the form was sent; a yes sends it again as it was."""
        form = self.request.POST.lists()
        return self.render(
            "console/ask.html",
            question=question[:LONGEST_QUESTION],
            kept=[(name, value) for name, values in form if name not in UNASKED for value in values],
            back=find_form(self.request) or self.url("project_home"),
        )

    def show_once(self, secret: str, *, of: str) -> None:
        """Have the page that is gone to show a secret of this id: loading that page again makes no other."""
        self.request.session[_slot(of)] = secret

    def take_shown_once(self, of: str) -> str:
        """Return the secret that this browser has just made, empty when it has been shown."""
        return str(self.request.session.pop(_slot(of), ""))

    def done(
        self, message: str, *, to: str, undo: str = "", follow: str = "", warning: str = "", passing: bool = False
    ) -> HttpResponse:
        """After a change without a fragment to show: say so and go to `to`.

        `undo` is an address to post to; `follow` is the page of what goes on in the background; `warning` is what may
        have been a slip; `passing`: the page that it leads to tells how it goes on, and the message goes with the first
        news.
        """
        if warning:
            messages.warning(self.request, f"{warning[0].upper()}{warning[1:]}")
        if self.is_htmx:
            return with_toast(HttpResponse(status=204, headers={"HX-Redirect": to}), message, undo=undo)
        more = format_html(' <a href="{}">Follow it</a>', follow) if follow else ""
        tags = undo or ("passing" if passing else "")
        messages.success(self.request, format_html("{}{}", message, more), extra_tags=tags)
        return redirect(to)


def _slot(of: str) -> str:
    return f"shown-once-{of}"


def project_page(
    *methods: str, role: Role = Role.VIEWER
) -> Callable[[Callable[Concatenate[Page, P], HttpResponse]], Callable[..., HttpResponse]]:
    """Turn `view(page, …)` into a Django view at `/p/<slug>/…` for members with `role`; others get 404 or 403."""

    def decorate(view: Callable[Concatenate[Page, P], HttpResponse]) -> Callable[..., HttpResponse]:
        @require_http_methods(list(methods) or ["GET", "HEAD"])
        @wraps(view)
        def open_page(request: HttpRequest, slug: str, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
            if not isinstance(request.user, User):
                return ask_to_log_in(request)
            caller = Caller(user=request.user)
            try:
                project = find_project(caller, slug, role=role)
                held = caller.role_in(project) or Role.VIEWER
                # Before the view reads anything: what comes later is replayed.
                since = find_newest(project.pk) if request.method == "GET" else None
                page = Page(request=request, user=request.user, caller=caller, project=project, role=held, since=since)
                if question := request.POST.get("question", "").strip():
                    return page.ask(question)
                return view(page, *args, **kwargs)
            except ServiceError as error:
                return refuse(request, error)

        open_page.methods = methods or ("GET", "HEAD")  # type: ignore[attr-defined]
        return open_page

    return decorate
