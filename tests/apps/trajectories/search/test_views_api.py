"""Saved views over REST: each endpoint with the same litany."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent, Project, User
from apps.core.ids import new_id
from apps.trajectories.search.models import SavedView

pytestmark = pytest.mark.django_db

VIEWS = "/api/v1/views"
Login = Callable[[User], APIClient]


@pytest.fixture
def view(project: Project, mate: User, agent: Agent) -> SavedView:
    return SavedView.objects.create(project=project, name="mine", query="has:error", owner=mate)


@pytest.fixture
def mates(client_of: Login, mate: User) -> APIClient:
    return client_of(mate)


def test_one_saves_lists_deletes_and_restores(mates: APIClient, view: SavedView) -> None:
    made = mates.post(f"{VIEWS}?project=shop", {"name": "bad", "query": "reward<0.3"})
    assert made.status_code == 201
    assert (made.json()["name"], made.json()["query"], made.json()["owner"]) == (
        "bad",
        "reward<0.3",
        "mate@example.org",
    )
    names = [item["name"] for item in mates.get(VIEWS, {"project": "shop"}).json()["items"]]
    assert names == ["bad", "mine"]
    for _ in range(2):
        assert mates.delete(f"{VIEWS}/{view.id}").status_code == 204
    assert [item["name"] for item in mates.get(VIEWS, {"project": "shop"}).json()["items"]] == ["bad"]
    assert mates.post(f"{VIEWS}/{view.id}/restore").json()["name"] == "mine"


def test_a_view_cannot_come_back_to_a_taken_name(mates: APIClient, view: SavedView, project: Project) -> None:
    mates.delete(f"{VIEWS}/{view.id}")
    SavedView.objects.create(project=project, name="mine")
    assert mates.post(f"{VIEWS}/{view.id}/restore").status_code == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": "  "}, "name"),
        ({"name": "x" * 61}, "name"),
        ({"name": "x", "query": "agnt:y"}, "q"),
        ({"name": "x", "colour": "red"}, "colour"),
    ],
)
def test_it_refuses_a_bad_body(mates: APIClient, agent: Agent, body: dict[str, Any], field: str) -> None:
    answer = mates.post(f"{VIEWS}?project=shop", body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_a_taken_name_is_a_conflict(mates: APIClient, view: SavedView) -> None:
    assert mates.post(f"{VIEWS}?project=shop", {"name": "mine"}).status_code == 409


def test_roles_decide(client_of: Login, viewer: User, owner: User, view: SavedView, project: Project) -> None:
    looking = client_of(viewer)
    assert looking.get(VIEWS, {"project": "shop"}).status_code == 200
    assert looking.post(f"{VIEWS}?project=shop", {"name": "x"}).status_code == 403
    assert looking.delete(f"{VIEWS}/{view.id}").status_code == 403
    assert client_of(owner).delete(f"{VIEWS}/{view.id}").status_code == 204
    others = SavedView.objects.create(project=project, name="others", owner=owner)
    assert client_of(SavedView.objects.get(pk=view.pk).owner).delete(f"{VIEWS}/{others.id}").status_code == 403  # type: ignore[arg-type]


ADDRESSES = [("get", ""), ("post", ""), ("delete", "/{id}"), ("post", "/{id}/restore")]


@pytest.mark.parametrize(("method", "path"), ADDRESSES)
def test_others_are_told_nothing(
    method: str, path: str, view: SavedView, anonymous_client: APIClient, other_client: APIClient
) -> None:
    address = VIEWS + path.format(id=view.id) + ("" if path else "?project=shop")
    assert getattr(anonymous_client, method)(address, {"name": "x"} if method == "post" else None).status_code == 401
    assert getattr(other_client, method)(address, {"name": "x"} if method == "post" else None).status_code == 404


@pytest.mark.parametrize("missing", [new_id("view"), "view_x", "%00"])
def test_a_missing_view_is_404(mates: APIClient, agent: Agent, missing: str) -> None:
    assert mates.delete(f"{VIEWS}/{missing}").status_code == 404
    assert mates.post(f"{VIEWS}/{missing}/restore").status_code == 404


def test_the_wrong_method_is_405(mates: APIClient, view: SavedView) -> None:
    assert mates.put(VIEWS, {}).status_code == 405
    assert mates.get(f"{VIEWS}/{view.id}").status_code == 405
    assert mates.get(f"{VIEWS}/{view.id}/restore").status_code == 405
