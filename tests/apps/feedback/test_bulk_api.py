"""Bulk jobs over REST: each endpoint with the same litany."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.models import Agent, ApiKey, Project, Team, User
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.models import Label
from apps.feedback.queues.models import ReviewQueue
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.running import run_job
from apps.trajectories.models import Trajectory
from tests.factories.accounts import ProjectFactory
from tests.factories.datasets import DatasetFactory
from tests.factories.trajectories import TrajectoryFactory

pytestmark = pytest.mark.django_db

JOBS = "/api/v1/bulk-jobs"
MINE = f"{JOBS}?project=shop"
Login = Callable[[User], APIClient]


@pytest.fixture
def trajectory(agent: Agent) -> Trajectory:
    return TrajectoryFactory.create(agent=agent)


@pytest.fixture
def job(project: Project, mate: User, trajectory: Trajectory) -> BulkJob:
    return BulkJob.objects.create(project=project, author=mate, action="exclude", ids=[trajectory.pk, new_id("traj")])


@pytest.fixture
def mates(client_of: Login, mate: User) -> APIClient:
    return client_of(mate)


def test_a_job_is_started_followed_and_taken_back(mates: APIClient, trajectory: Trajectory) -> None:
    started = mates.post(MINE, {"action": "tag", "settings": {"tag": "x"}, "q": ""})
    assert (started.status_code, started.json()["state"]) == (202, "queued")
    job_id = started.json()["id"]
    run_job(job_id, actions=ACTIONS)
    shown = mates.get(f"{JOBS}/{job_id}").json()
    assert (shown["state"], shown["n_total"], shown["n_done"], shown["can_undo"]) == ("done", 1, 1, True)
    assert shown["n_changed"] == 1
    assert mates.get(f"{JOBS}/{job_id}/failures").json() == {"items": [], "next_after": None}
    assert mates.post(f"{JOBS}/{job_id}/undo").json()["state"] == "undoing"
    run_job(job_id, actions=ACTIONS)
    assert mates.get(MINE).json()["items"][0]["state"] == "undone"
    assert mates.post(f"{JOBS}/{job_id}/undo").status_code == 409


def test_failures_are_listed(mates: APIClient, job: BulkJob) -> None:
    run_job(job.pk, actions=ACTIONS)
    (failure,) = mates.get(f"{JOBS}/{job.pk}/failures").json()["items"]
    assert failure["trajectory"] in job.ids
    assert "no such trajectory" in failure["error"]
    assert mates.get(f"{JOBS}/{job.pk}/failures", {"after": "x"}).json()["field"] == "after"


def test_another_projects_dataset_and_queue_are_none(mates: APIClient, trajectory: Trajectory, team: Team) -> None:
    for project in (ProjectFactory.create(), ProjectFactory.create(team=team)):
        dataset = DatasetFactory.create(project=project)
        queue = ReviewQueue.objects.create(project=project, name="theirs")
        for action, row in (("dataset", dataset), ("queue", queue)):
            answer = mates.post(MINE, {"action": action, "settings": {action: row.pk}, "ids": [trajectory.pk]})
            assert (answer.status_code, answer.json()["field"]) == (404, action)
            assert "this project has no" in answer.json()["detail"]
    assert not BulkJob.objects.exists()


def test_a_keys_reward_is_the_environments(
    manage_client: APIClient, manage_key: ApiKey, trajectory: Trajectory
) -> None:
    body = {"action": "reward", "settings": {"value": 0.5}, "ids": [trajectory.pk]}
    run_job(manage_client.post(JOBS, body).json()["id"], actions=ACTIONS)
    label = Label.objects.get()
    assert (label.key, label.source, label.value) == (manage_key, "environment", 0.5)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "action"),
        ({"action": "fly", "q": ""}, "action"),
        ({"action": "exclude"}, "ids"),
        ({"action": "exclude", "q": "", "ids": [new_id("traj")]}, "ids"),
        ({"action": "exclude", "ids": ["x"]}, "ids"),
        ({"action": "exclude", "q": "agnt:x"}, "q"),
        ({"action": "exclude", "q": "", "settings": {"tag": "x"}}, "settings"),
        ({"action": "tag", "q": ""}, "tag"),
        ({"action": "tag", "q": "", "settings": {"tag": "x" * 41}}, "tag"),
        ({"action": "tag", "q": "", "settings": {"tag": 5}}, "tag"),
        ({"action": "channel", "q": "", "settings": {"channel": "test"}}, "channel"),
        ({"action": "reward", "q": "", "settings": {"value": 2}}, "value"),
        ({"action": "reward", "q": "", "settings": {"value": True}}, "value"),
        ({"action": "reward", "q": "", "settings": {"value": 10**400}}, "value"),
        ({"action": "reward", "q": "", "settings": {"value": 1, "text": 5}}, "text"),
        ({"action": "exclude", "q": "", "why": "x"}, "why"),
    ],
)
def test_it_refuses_a_bad_body(mates: APIClient, agent: Agent, body: dict[str, Any], field: str) -> None:
    answer = mates.post(MINE, body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert not BulkJob.objects.exists()


@pytest.mark.parametrize(("chosen", "field"), [({}, "grader"), ({"queue": "x"}, "settings")])
def test_what_to_take_back_is_one_graders(
    mates: APIClient, manage_client: APIClient, agent: Agent, chosen: dict[str, str], field: str
) -> None:
    body = {"action": "take-back", "q": "", "settings": chosen}
    answer = manage_client.post(JOBS, body)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert mates.post(MINE, body).status_code == 403  # a trainer's
    assert not BulkJob.objects.exists()


def test_another_projects_dataset_is_missing(mates: APIClient, agent: Agent) -> None:
    body = {"action": "dataset", "q": "", "settings": {"dataset": new_id("dset")}}
    assert mates.post(MINE, body).status_code == 404


def test_roles_decide(client_of: Login, viewer: User, mates: APIClient, job: BulkJob) -> None:
    looking = client_of(viewer)
    assert looking.get(MINE).status_code == 200
    assert looking.get(f"{JOBS}/{job.pk}").status_code == 200
    assert looking.post(MINE, {"action": "exclude", "q": ""}).status_code == 403
    assert looking.post(f"{JOBS}/{job.pk}/undo").status_code == 403
    assert mates.post(MINE, {"action": "delete", "q": ""}).status_code == 403


ADDRESSES = [("get", ""), ("post", ""), ("get", "/{id}"), ("get", "/{id}/failures"), ("post", "/{id}/undo")]


@pytest.mark.parametrize(("method", "path"), ADDRESSES)
def test_others_are_told_nothing(
    method: str, path: str, job: BulkJob, anonymous_client: APIClient, other_client: APIClient
) -> None:
    address = JOBS + path.format(id=job.pk) if path else MINE
    body = {"action": "exclude", "q": ""} if method == "post" else None
    assert getattr(anonymous_client, method)(address, body).status_code == 401
    assert getattr(other_client, method)(address, body).status_code == 404


@pytest.mark.parametrize("missing", [new_id("job"), "job_x", "%00"])
@pytest.mark.parametrize(("method", "path"), [address for address in ADDRESSES if address[1]])
def test_a_missing_job_is_404(mates: APIClient, agent: Agent, method: str, path: str, missing: str) -> None:
    assert getattr(mates, method)(JOBS + path.format(id=missing)).status_code == 404


@pytest.mark.parametrize("path", ["", "/{id}", "/{id}/failures", "/{id}/undo"])
def test_the_wrong_method_is_405(mates: APIClient, job: BulkJob, path: str) -> None:
    assert mates.delete(JOBS + path.format(id=job.pk)).status_code == 405
