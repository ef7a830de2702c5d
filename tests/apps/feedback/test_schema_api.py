"""Score schemas over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import User
from apps.feedback.models import ScoreSchema
from apps.trajectories.bulk.models import BulkJob

pytestmark = pytest.mark.django_db

URL = "/api/v1/score-schemas"
STARS = {"name": "stars", "kind": "scale", "low": 1, "high": 5}
Login = Callable[[User], APIClient]


def test_a_project_begins_with_the_default(key_client: APIClient) -> None:
    [shown] = key_client.get(URL).json()["items"]
    assert (shown["id"], shown["number"]) == (None, 0)
    assert [field["name"] for field in shown["definition"]["fields"]] == ["reward", "comment", "hint"]


def test_a_new_version_is_in_force_at_once(manage_client: APIClient) -> None:
    for number, note in ((1, "first"), (2, "second")):
        answer = manage_client.post(URL, {"definition": {"fields": [STARS]}, "note": note})
        assert (answer.status_code, answer.json()["number"]) == (201, number)
        assert BulkJob.objects.get(pk=answer.json()["job"]).action == "rescore"
    assert [item["note"] for item in manage_client.get(URL).json()["items"]] == ["second", "first"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "definition"),
        ({"definition": {"fields": [{**STARS, "high": 0}]}}, "fields.0.high"),
        ({"definition": {"fields": [STARS, STARS]}}, "fields.1.name"),
        ({"definition": {"trust": [{"oracle": 1}]}}, "trust"),
        ({"definition": {"fields": [{**STARS, "high": 10**400}]}}, "fields.0.high"),
        ({"definition": {}, "note": "x" * 401}, "note"),
        ({"definition": {}, "note": "\x00"}, "note"),
        ({"definition": {}, "colour": "red"}, "colour"),
    ],
)
def test_it_refuses_a_bad_body(manage_client: APIClient, body: dict[str, Any], field: str) -> None:
    answer = manage_client.post(URL, body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert not ScoreSchema.objects.exists()


def test_who_may(
    client_of: Login,
    key_client: APIClient,
    trainer: User,
    mate: User,
    stranger: User,
    anonymous_client: APIClient,
) -> None:
    address = f"{URL}?project=shop"
    body: dict[str, Any] = {"definition": {}}
    assert anonymous_client.get(address).status_code == 401
    assert client_of(mate).get(address).status_code == 200
    for client, status in ((client_of(mate), 403), (key_client, 403), (client_of(stranger), 404)):
        assert client.post(address, body).status_code == status
    assert client_of(trainer).post(address, body).status_code == 201
    assert client_of(trainer).delete(address).status_code == 405
    assert client_of(trainer).get(f"{URL}?project=nowhere").status_code == 404
