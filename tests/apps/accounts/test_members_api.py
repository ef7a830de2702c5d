"""Who is in a team, over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import AuditEvent, Membership, Role, Team, User
from apps.core.ids import new_id
from tests.factories.accounts import UserFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
NEW = {"email": "Fresh@Example.org", "name": "Fresh", "role": "trainer"}


@pytest.fixture
def url(team: Team) -> str:
    return f"/api/v1/teams/{team.id}/members"


class TestMembers:
    def test_a_viewer_sees_them_by_e_mail(
        self, client_of: Login, viewer: User, owner: User, stranger: User, url: str
    ) -> None:
        items = client_of(viewer).get(url).json()["items"]
        assert [(item["email"], item["role"]) for item in items] == [
            ("owner@example.org", "owner"),
            ("viewer@example.org", "viewer"),
        ]
        assert (items[0]["id"], set(items[0])) == (owner.id, {"id", "email", "name", "role", "added_at"})

    def test_a_key_sees_its_own_teams(self, key_client: APIClient, other_client: APIClient, url: str) -> None:
        assert key_client.get(url).json() == {"items": []}
        assert other_client.get(url).status_code == 404

    def test_a_new_person_gets_a_first_password_that_is_shown_once(
        self, client_of: Login, owner: User, team: Team, url: str
    ) -> None:
        answer = client_of(owner).post(url, NEW)
        assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
        told = answer.json()
        member = Membership.objects.get(team=team, role=Role.TRAINER)
        assert (told["id"], told["email"], told["name"]) == (member.user_id, "fresh@example.org", "Fresh")
        assert member.user.check_password(told["first_password"])
        assert told["first_password"] not in client_of(owner).get(url).content.decode()
        event = AuditEvent.objects.get()
        assert (event.action, event.object_id, event.actor) == ("member.added", member.user_id, owner.email)

    def test_who_has_an_account_keeps_the_password(self, client_of: Login, owner: User, url: str) -> None:
        UserFactory.create(email="fresh@example.org")
        answer = client_of(owner).post(url, NEW)
        assert (answer.status_code, answer.json()["first_password"]) == (201, "")
        again = client_of(owner).post(url, NEW)
        assert (again.status_code, again.json()["field"]) == (409, "email")

    @pytest.mark.parametrize(
        "body",
        [
            {},
            [],
            {"email": "fresh@example.org"},
            {**NEW, "email": "nobody"},
            {**NEW, "email": f"{'x' * 250}@example.org"},
            {**NEW, "name": "x" * 101},
            {**NEW, "role": "king"},
            {**NEW, "password": "mine"},
        ],
    )
    def test_it_refuses_a_bad_body(self, client_of: Login, owner: User, url: str, body: Any) -> None:
        assert client_of(owner).post(url, body).status_code == 400
        assert Membership.objects.count() == User.objects.count() == 1

    def test_who_may(
        self,
        client_of: Login,
        trainer: User,
        stranger: User,
        manage_client: APIClient,
        other_client: APIClient,
        anonymous_client: APIClient,
        url: str,
    ) -> None:
        assert anonymous_client.get(url).status_code == 401
        assert anonymous_client.post(url, NEW).status_code == 401
        for client in (client_of(stranger), other_client):
            assert client.get(url).status_code == 404
            assert client.post(url, NEW).status_code == 404
        assert client_of(trainer).post(url, NEW).status_code == 403
        refusal = manage_client.post(url, NEW)
        assert refusal.status_code == 403
        assert "an owner log in" in refusal.json()["detail"]
        assert client_of(trainer).put(url, NEW).status_code == 405
        assert not User.objects.filter(email__iexact=NEW["email"]).exists()


class TestMember:
    def test_it_is_shown_and_gets_another_role(self, client_of: Login, owner: User, mate: User, url: str) -> None:
        client, place = client_of(owner), f"{url}/{mate.id}"
        assert client.get(place).json()["role"] == "reviewer"
        assert client.patch(place, {"role": "trainer"}).json()["role"] == "trainer"
        assert client.get(place).json()["role"] == "trainer"
        assert AuditEvent.objects.get().action == "member.changed"

    def test_it_leaves(self, client_of: Login, owner: User, mate: User, url: str) -> None:
        client, place = client_of(owner), f"{url}/{mate.id}"
        answer = client.delete(place)
        assert (answer.status_code, answer.content) == (204, b"")
        assert client.get(place).status_code == client.delete(place).status_code == 404
        assert client_of(mate).get(url).status_code == 404
        assert User.objects.filter(pk=mate.pk).exists()

    def test_a_team_keeps_an_owner(self, client_of: Login, owner: User, url: str) -> None:
        client, place = client_of(owner), f"{url}/{owner.id}"
        for answer in (client.patch(place, {"role": "viewer"}), client.delete(place)):
            assert (answer.status_code, answer.json()["field"]) == (409, "role")
        assert client.get(place).json()["role"] == "owner"

    @pytest.mark.parametrize("body", [{}, [], {"role": "king"}, {"role": "viewer", "name": "x"}])
    def test_it_refuses_a_bad_body(self, client_of: Login, owner: User, mate: User, url: str, body: Any) -> None:
        assert client_of(owner).patch(f"{url}/{mate.id}", body).status_code == 400

    def test_who_may(
        self,
        client_of: Login,
        owner: User,
        trainer: User,
        stranger: User,
        manage_client: APIClient,
        anonymous_client: APIClient,
        url: str,
    ) -> None:
        place, body = f"{url}/{trainer.id}", {"role": "viewer"}
        refused = ((anonymous_client, 401), (client_of(stranger), 404), (client_of(trainer), 403), (manage_client, 403))
        for client, status in refused:
            assert client.patch(place, body).status_code == status
            assert client.delete(place).status_code == status
        assert client_of(trainer).get(place).status_code == 200
        assert client_of(owner).post(place, body).status_code == 405
        assert Membership.objects.get(user=trainer).role == Role.TRAINER

    def test_what_is_missing_is_404(self, client_of: Login, owner: User, stranger: User, url: str) -> None:
        client = client_of(owner)
        for user_id in (stranger.id, new_id("user"), "x", "%00"):
            for answer in (client.get(f"{url}/{user_id}"), client.patch(f"{url}/{user_id}", {"role": "viewer"})):
                assert answer.status_code == 404
        for team_id in (new_id("team"), "x", "%00"):
            assert client.get(f"/api/v1/teams/{team_id}/members").status_code == 404
            assert client.get(f"/api/v1/teams/{team_id}/members/{owner.id}").status_code == 404
