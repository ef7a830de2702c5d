"""Preferences over REST."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import ApiKey, User
from apps.core.ids import new_id
from apps.feedback.preferences.models import Preference
from apps.trajectories.models import Step, Trajectory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]


@pytest.fixture
def step(key: ApiKey) -> Step:
    return StepFactory.create(trajectory=TrajectoryFactory.create(agent=key.agent))


@pytest.fixture
def url(step: Step) -> str:
    return f"/api/v1/steps/{step.id}/corrections"


def test_a_correction_works_and_is_listed_and_taken_back(key_client: APIClient, url: str, step: Step) -> None:
    answer = key_client.post(url, {"message": "hello there", "text": "be polite"})
    assert answer.status_code == 201
    shown = answer.json()
    assert (shown["kind"], shown["rejected"]) == ("correction", {"step": step.id})
    assert shown["chosen"] == {"message": {"role": "assistant", "content": "hello there"}}
    [listed] = key_client.get("/api/v1/preferences", {"kind": "correction"}).json()["items"]
    assert listed == shown
    assert key_client.get("/api/v1/preferences", {"kind": "ranking"}).json()["items"] == []
    undo = f"/api/v1/preferences/{shown['id']}/take-back"
    assert key_client.post(undo).json()["is_undo"] is True
    assert key_client.post(undo).status_code == 409
    assert key_client.get("/api/v1/preferences").json() == {"items": [], "next_before": None}


def test_a_comparison_works(key_client: APIClient, step: Step) -> None:
    body = {"chosen": {"message": "hey"}, "rejected": {"step": step.id}, "idempotency_key": "k"}
    first, again = (key_client.post("/api/v1/comparisons", body) for _ in range(2))
    assert (first.status_code, first.json()["id"]) == (201, again.json()["id"])


def test_an_idempotency_key_tells_which_side_is_better(key_client: APIClient, step: Step) -> None:
    sides = [
        {"trajectory": step.trajectory_id},
        {"trajectory": TrajectoryFactory.create(agent=step.trajectory.agent).id},
    ]
    for (chosen, rejected), status in ((sides, 201), (sides[::-1], 409)):
        body = {"chosen": chosen, "rejected": rejected, "idempotency_key": "k"}
        assert key_client.post("/api/v1/comparisons", body).status_code == status


def test_a_ranking_works(key_client: APIClient, manage_client: APIClient, step: Step) -> None:
    fields = [{"name": "order", "kind": "ranking"}]
    assert manage_client.post("/api/v1/score-schemas", {"definition": {"fields": fields}}).status_code == 201
    other = TrajectoryFactory.create(agent=step.trajectory.agent)
    body = {"field": "order", "places": [[other.id], [step.trajectory_id]], "source": "judge"}
    answer = key_client.post("/api/v1/rankings", body)
    assert answer.status_code == 201
    assert answer.json()["rewards"] == {other.id: 1, step.trajectory_id: -1}
    assert answer.json()["pairs"][0]["rejected"] == {"trajectory": step.trajectory_id}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("corrections", {}),
        ("corrections", {"message": "hi"}),
        ("corrections", {"message": "x", "source": "human"}),
        ("corrections", {"message": "x", "colour": "red"}),
        ("comparisons", {"chosen": {"message": "x"}}),
        ("comparisons", {"chosen": {"message": "x", "step": "y"}, "rejected": {"message": "z"}}),
        ("comparisons", {"chosen": {}, "rejected": {"message": "z"}}),
        ("comparisons", {"chosen": {"message": "x"}, "rejected": {"message": "z"}}),
        ("rankings", {"field": "order", "places": []}),
        ("rankings", {"field": "order", "places": [[]]}),
        ("rankings", {"places": [["traj"]]}),
    ],
)
def test_a_bad_body_is_refused(key_client: APIClient, url: str, path: str, body: dict[str, Any]) -> None:
    assert key_client.post(url if path == "corrections" else f"/api/v1/{path}", body).status_code == 400
    assert not Preference.objects.exists()


def test_who_may(
    client_of: Login, viewer: User, stranger: User, anonymous_client: APIClient, other_client: APIClient, url: str
) -> None:
    body = {"message": "x"}
    assert anonymous_client.post(url, body).status_code == 401
    assert client_of(viewer).post(url, body).status_code == 403
    for client in (client_of(stranger), other_client):
        assert client.post(url, body).status_code == 404
    assert client_of(viewer).get(url).status_code == 405
    assert client_of(stranger).get("/api/v1/preferences", {"project": "shop"}).status_code == 404
    assert other_client.get("/api/v1/preferences").json()["items"] == []


def test_what_is_missing_is_404(key_client: APIClient, other_client: APIClient, url: str) -> None:
    for missing in (new_id("step"), "nonsense", "%00"):
        assert key_client.post(f"/api/v1/steps/{missing}/corrections", {"message": "x"}).status_code == 404
        body = {"chosen": {"step": missing}, "rejected": {"message": "x"}}
        assert key_client.post("/api/v1/comparisons", body).status_code == 404
    row = key_client.post(url, {"message": "x"}).json()["id"]
    for client, preference in ((key_client, new_id("pref")), (key_client, "nonsense"), (other_client, row)):
        assert client.post(f"/api/v1/preferences/{preference}/take-back").status_code == 404


def test_deleted_trajectories_have_no_preferences(key_client: APIClient, url: str, step: Step) -> None:
    key_client.post(url, {"message": "x"})
    Trajectory.objects.update(deleted_at=step.started_at)
    assert key_client.get("/api/v1/preferences").json()["items"] == []
    assert key_client.post(url, {"message": "y"}).status_code == 404
