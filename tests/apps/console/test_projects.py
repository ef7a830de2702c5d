"""Projects are made on the page that lists them, each with its own model line."""

import pytest
from django.test import Client

from apps.accounts.models import AuditEvent, Membership, Project, Role, Team, User
from apps.registry.models import AliasName, Policy, VersionKind
from tests.factories.accounts import MembershipFactory, UserFactory
from tests.factories.registry import VersionFactory


def send(browser: Client, project: Project, policy: Policy, **changes: str) -> "tuple[int, str]":
    sent = {"name": "Second shop", "team": project.team_id, "base": policy.pk, **changes}
    response = browser.post("/", sent)
    return response.status_code, response.text if response.status_code != 302 else response["Location"]


def test_an_owner_makes_one_that_has_the_base_weights_live(
    owner_browser: Client, project: Project, policy: Policy
) -> None:
    assert "New project" in owner_browser.get("/").text
    assert send(owner_browser, project, policy) == (302, "/p/second-shop/agents")
    made = Project.objects.get(slug="second-shop")
    assert made.team == project.team
    own = Policy.objects.get(project=made)
    assert (own.base_model, own.base_model_dir, own.pk == policy.pk) == ("tiny", "models/tiny", False)
    assert own.aliases.get(name=AliasName.LIVE).version.number == 0
    assert AuditEvent.objects.filter(team=made.team, action="project.created", object_id=made.id).exists()
    assert "Second shop is here." in owner_browser.get("/p/second-shop/agents").text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Shop"}, "the address /p/shop/ is taken; choose another name"),
        ({"name": " "}, "This field is required."),
        ({"name": "???"}, "the name needs at least one letter or digit"),
        ({"name": "x" * 101}, "at most 100 characters"),
        ({"team": "team_00000000000000000000000000"}, "Select a valid choice"),
        ({"base": "plcy_00000000000000000000000000"}, "Select a valid choice"),
    ],
)
def test_a_bad_one_is_told_at_the_field_and_nothing_is_made(
    owner_browser: Client, project: Project, policy: Policy, changes: dict[str, str], said: str
) -> None:
    status, html = send(owner_browser, project, policy, **changes)
    assert status == 400
    assert said in html
    assert '<details class="sheet" id="new-project" open>' in html
    assert Project.objects.count() == 1


def test_base_weights_that_no_engine_has_any_more_are_told(
    owner_browser: Client, project: Project, policy: Policy
) -> None:
    VersionFactory.create(policy=policy, number=1, kind=VersionKind.WHOLE, engine_name="tiny", adapter_path="v1")
    status, html = send(owner_browser, project, policy)
    assert (status, Project.objects.count()) == (400, 1)
    assert "so its base is not there any more" in html


def test_who_owns_no_team_makes_none(
    trainer_browser: Client, viewer_browser: Client, project: Project, policy: Policy
) -> None:
    for browser in (trainer_browser, viewer_browser):
        assert "New project" not in browser.get("/").text
        assert send(browser, project, policy)[0] == 403
    assert Project.objects.count() == 1


def test_another_teams_base_and_name_are_not_there(
    owner_browser: Client, project: Project, policy: Policy, owner: User
) -> None:
    other = Team.objects.create(name="Others")
    MembershipFactory.create(team=other, user=UserFactory.create(), role=Role.OWNER)
    theirs = Project.objects.create(team=other, name="Theirs", slug="theirs")
    foreign = Policy.objects.create(project=theirs, slug="theirs", base_model="secret", base_model_dir="secret")
    assert "secret" not in owner_browser.get("/").text
    assert send(owner_browser, project, policy, team=other.pk)[0] == 400
    assert send(owner_browser, project, foreign)[0] == 400
    Membership.objects.create(team=other, user=owner, role=Role.VIEWER)
    assert send(owner_browser, project, policy, team=other.pk)[0] == 400


def test_staff_makes_no_project_without_a_model_line(owner_browser: Client, owner: User) -> None:
    User.objects.filter(pk=owner.pk).update(is_staff=True, is_superuser=True)
    assert owner_browser.get("/admin/accounts/project/").status_code == 200
    assert owner_browser.get("/admin/accounts/project/add/").status_code == 403
