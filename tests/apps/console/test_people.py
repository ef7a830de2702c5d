"""Who is in the team: adding, roles, leaving; passwords."""

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from apps.accounts.models import AuditEvent, Membership, Project, Role, Team, User
from tests.factories.accounts import PASSWORD, MembershipFactory, UserFactory

PAGE = "/p/shop/people"


def role_of(team: Team, email: str) -> str | None:
    return Membership.objects.filter(team=team, user__email=email).values_list("role", flat=True).first()


def test_members_see_who_is_in_the_team(
    viewer_browser: Client, stranger_browser: Client, anonymous_browser: Client, owner: User, project: Project
) -> None:
    html = viewer_browser.get(PAGE).content.decode()
    assert owner.email in html
    assert "stranger@example.org" not in html
    assert "Ask owner@example.org" in html
    assert stranger_browser.get(PAGE).status_code == 404
    assert anonymous_browser.get(PAGE).status_code == 302


def test_a_new_person_gets_an_account_and_a_first_password_once(
    owner_browser: Client, anonymous_browser: Client, project: Project
) -> None:
    form = {"email": "Ada@Example.org", "name": "Ada", "role": "reviewer"}
    response = owner_browser.post(PAGE, form)
    first_password = response.content.decode().split('<code id="secret">')[1].split("<")[0]
    assert response["Cache-Control"] == "no-store"
    assert first_password not in owner_browser.get(PAGE).content.decode()
    assert role_of(project.team, "ada@example.org") == Role.REVIEWER
    login = {"username": "ada@example.org", "password": first_password}
    assert anonymous_browser.post("/login", login).status_code == 302
    assert "Shop" in anonymous_browser.get("/").content.decode()
    assert AuditEvent.objects.filter(team=project.team, action="member.added").count() == 1


def test_somebody_with_an_account_keeps_it(owner_browser: Client, stranger: User, project: Project) -> None:
    response = owner_browser.post(PAGE, {"email": "STRANGER@example.org", "role": "viewer"})
    assert (response.status_code, response["Location"]) == (302, PAGE)
    assert role_of(project.team, stranger.email) == Role.VIEWER
    stranger.refresh_from_db()
    assert stranger.check_password(PASSWORD)


@pytest.mark.parametrize(
    ("form", "status", "words"),
    [
        ({"email": "owner@example.org", "role": "viewer"}, 409, "in this team already"),
        ({"email": "nobody", "role": "viewer"}, 400, "valid email"),
        ({"email": "ada@example.org", "role": "king"}, 400, "valid choice"),
        ({}, 400, "required"),
    ],
)
def test_a_bad_form_is_told(
    owner_browser: Client, project: Project, form: dict[str, str], status: int, words: str
) -> None:
    response = owner_browser.post(PAGE, form)
    assert response.status_code == status
    assert words in response.content.decode()
    assert Membership.objects.filter(team=project.team).count() == 1


def test_an_owner_changes_a_role_and_takes_somebody_out(owner_browser: Client, mate: User, project: Project) -> None:
    address = f"{PAGE}/{mate.pk}"
    assert owner_browser.post(f"{address}/role", {"role": "trainer"})["Location"] == PAGE
    assert role_of(project.team, mate.email) == Role.TRAINER
    assert owner_browser.post(f"{address}/role", {"role": "king"}).status_code == 400
    assert owner_browser.post(f"{address}/remove")["Location"] == PAGE
    assert role_of(project.team, mate.email) is None
    assert owner_browser.post(f"{address}/remove").status_code == 404
    told = list(AuditEvent.objects.filter(team=project.team).order_by("pk").values_list("action", flat=True))
    assert told == ["member.changed", "member.removed"]


def test_the_last_owner_stays(owner_browser: Client, owner: User, mate: User, project: Project) -> None:
    address = f"{PAGE}/{owner.pk}"
    for answer in (owner_browser.post(f"{address}/role", {"role": "viewer"}), owner_browser.post(f"{address}/remove")):
        assert answer.status_code == 409
        assert "needs an owner" in answer.content.decode()
    owner_browser.post(f"{PAGE}/{mate.pk}/role", {"role": "owner"})
    assert owner_browser.post(f"{address}/remove")["Location"] == "/"
    assert owner_browser.get(PAGE).status_code == 404


def test_the_only_owner_is_offered_no_change_that_cannot_be(
    owner_browser: Client, owner: User, mate: User, team: Team, project: Project
) -> None:
    page = f"/p/{project.slug}/people"
    own = f"{page}/{owner.pk}/remove"
    html = owner_browser.get(page).content.decode()
    assert "the only owner: make somebody else one first" in html
    assert own not in html
    assert f"{page}/{mate.pk}/remove" in html
    Membership.objects.filter(user=mate, team=team).update(role=Role.OWNER)
    assert own in owner_browser.get(page).content.decode()


def test_only_members_of_this_team_can_be_changed(owner_browser: Client, stranger: User, project: Project) -> None:
    for what in ("role", "remove"):
        assert owner_browser.post(f"{PAGE}/{stranger.pk}/{what}", {"role": "owner"}).status_code == 404
        assert owner_browser.post(f"{PAGE}/nobody/{what}", {"role": "owner"}).status_code == 404
    assert stranger.memberships.count() == 1


def test_a_person_changes_the_password(owner: User, owner_browser: Client, anonymous_browser: Client) -> None:
    assert anonymous_browser.get("/password").status_code == 302
    form = {"old_password": PASSWORD, "new_password1": "a far longer one", "new_password2": "a far longer one"}
    assert "incorrect" in owner_browser.post("/password", {**form, "old_password": "x"}).content.decode()
    short = {**form, "new_password1": "short", "new_password2": "short"}
    assert "too short" in owner_browser.post("/password", short).content.decode()
    assert owner_browser.post("/password", form).status_code == 302
    assert owner_browser.get("/password").status_code == 200  # this browser stays logged in
    owner.refresh_from_db()
    assert owner.check_password("a far longer one")


def test_guessing_at_a_password_has_an_end(db: None, anonymous_browser: Client) -> None:
    MembershipFactory.create(user=UserFactory.create(email="guessed@example.org"))
    login = {"username": "guessed@example.org", "password": PASSWORD}
    for _ in range(10):
        assert "capitals count" in anonymous_browser.post("/login", {**login, "password": "x"}).content.decode()
        anonymous_browser.post("/login", {**login, "password": ""})  # makes nothing forgotten
    told = anonymous_browser.post("/login", login)
    assert told.status_code == 200
    assert "Try again in 15 min" in told.content.decode()
    assert anonymous_browser.post("/login", login, REMOTE_ADDR="192.0.2.7").status_code == 302


def test_a_right_password_forgets_the_wrong_ones(db: None, anonymous_browser: Client) -> None:
    UserFactory.create(email="clumsy@example.org")
    login = {"username": "clumsy@example.org", "password": PASSWORD}
    for _ in range(2):
        for _ in range(9):
            anonymous_browser.post("/login", {**login, "password": "x"})
        assert anonymous_browser.post("/login", login).status_code == 302
        anonymous_browser.logout()


def test_without_valkey_people_get_in(db: None, anonymous_browser: Client, settings: Settings) -> None:
    UserFactory.create(email="early@example.org")
    settings.REDIS_URL = "unix:///nowhere.sock"
    login = {"username": "early@example.org", "password": PASSWORD}
    assert "capitals count" in anonymous_browser.post("/login", {**login, "password": "x"}).content.decode()
    assert anonymous_browser.post("/login", login).status_code == 302


def test_staff_come_in_by_the_same_door(owner: User, owner_browser: Client, anonymous_browser: Client) -> None:
    assert anonymous_browser.get("/admin/", follow=True).redirect_chain[-1][0] == "/login?next=/admin/"
    assert anonymous_browser.post("/admin/login/", {"username": "x", "password": "x"}).status_code == 405
    assert owner_browser.get("/admin/", follow=True).status_code == 403
    User.objects.filter(pk=owner.pk).update(is_staff=True)
    assert owner_browser.get("/admin/").status_code == 200
