"""Who is in the team, with which role; and the password of whoever is looking."""

from typing import Any

from django.contrib import messages
from django.contrib.auth.views import PasswordChangeView
from django.http import HttpResponse
from django.urls import reverse_lazy

from apps.accounts import services
from apps.accounts.models import Membership, Role
from apps.console.forms import PersonForm, RoleForm
from apps.console.page import Page, project_page
from apps.core.errors import InvalidInput, ServiceError

ROLES = {
    Role.OWNER: "everything: people, keys, limits, providers",
    Role.TRAINER: "runs, versions, graders, exports, and all that reviewers do",
    Role.REVIEWER: "rewards, reviews, datasets",
    Role.VIEWER: "look",
}


class _PasswordView(PasswordChangeView):
    template_name = "console/password.html"
    success_url = reverse_lazy("home")

    def form_valid(self, form: Any) -> HttpResponse:
        messages.success(self.request, "Your password is changed.")
        return super().form_valid(form)


password = _PasswordView.as_view()


@project_page("GET", "HEAD", "POST")
def people(page: Page) -> HttpResponse:
    """List the team's members; add one."""
    if page.request.method != "POST":
        return _render(page)
    page.require(Role.OWNER)
    form = PersonForm(page.request.POST)
    if not form.is_valid():
        return _render(page, form=form, status=400)
    values = form.cleaned_data
    try:
        added, first_password = services.invite_person(
            team=page.project.team,
            email=values["email"],
            name=values["name"],
            role=Role(values["role"]),
            actor=page.caller.name,
        )
    except ServiceError as error:
        form.add_error("email", error.message)
        return _render(page, form=form, status=error.status)
    if first_password:
        return _render(page, added=added, first_password=first_password)
    return page.done(f"{added.user} is in the team now.", to=page.url("people"))


@project_page("POST", role=Role.OWNER)
def change_role(page: Page, user_id: str) -> HttpResponse:
    """Give a member another role."""
    member = services.find_member(team=page.project.team, user_id=user_id)
    form = RoleForm(page.request.POST)
    if not form.is_valid():
        raise InvalidInput(f"a role is one of {', '.join(Role.values)}", field="role")
    role = Role(form.cleaned_data["role"])
    services.change_role(member, role=role, actor=page.caller.name)
    return page.done(f"{member.user} is {role.label.lower()} now.", to=page.url("people"))


@project_page("POST", role=Role.OWNER)
def remove(page: Page, user_id: str) -> HttpResponse:
    """Take a member out of the team."""
    member = services.find_member(team=page.project.team, user_id=user_id)
    services.remove_member(member, actor=page.caller.name)
    to = "/" if member.user_id == page.user.pk else page.url("people")
    return page.done(f"{member.user} is out of the team. What they said and made stays.", to=to)


def _render(
    page: Page,
    *,
    form: PersonForm | None = None,
    added: Membership | None = None,
    first_password: str = "",
    status: int = 200,
) -> HttpResponse:
    members = services.list_members(page.project.team)
    owners = [member for member in members if member.role == Role.OWNER]
    response = page.render(
        "console/people.html",
        members=members,
        only_owner=owners[0] if len(owners) == 1 else None,
        roles=list(ROLES.items()),
        form=form or PersonForm(),
        added=added,
        first_password=first_password,
        status=status,
    )
    if first_password:
        response["Cache-Control"] = "no-store"
    return response
