"""No list of the pool asks Postgres for more than a page: it counts no whole table and skips no rows."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Project, User
from apps.feedback.bulk import ACTIONS
from apps.trajectories.bulk.models import BulkJob, TrajectoryTag
from apps.trajectories.bulk.services import start_job
from apps.trajectories.datasets.exporting import start_export
from apps.trajectories.datasets.models import AddedBy, Dataset, Snapshot
from apps.trajectories.datasets.services import add_to_dataset, create_dataset, take_snapshot
from apps.trajectories.datasets.shapes import MESSAGES
from apps.trajectories.models import Trajectory
from tests.factories.feedback import LabelFactory

GROWING = re.compile(
    r'FROM "(trajectories_(exchange|trajectory|step|trajectorytext|trajectoryversion|trajectorytag|bulkjob|bulkchange'
    r"|datasetmember|snapshot|snapshotentry|export|import|importproblem|unassignedcall)|feedback_label"
    r'|feedback_preference|training_batchtrajectory)"'
)
# What one row's own key finds, or the rows that hang on those of a page.
BY_KEY = re.compile(r'"(id|trajectory_id|step_id|job_id|exchange_id|superseded_by_id|parent_id)" (= |IN \()')
PAGES = (
    "/p/shop/",
    "/p/shop/trajectories",
    "/p/shop/trajectories?q=agent:clerk+reward>0+has:error+tag:x+break:none+label:any+version:0+-parcel+parcel",
    "/p/shop/trajectories?rewarded=good&state=complete&channel=train&before=traj_7zzzzzzzzzzzzzzzzzzzzzzzzz",
    "/p/shop/trajectories/{trajectory}",
    "/p/shop/trajectories/{trajectory}?from=0&step=0&view=tokens",
    "/p/shop/jobs",
    "/p/shop/jobs/{job}",
    "/p/shop/inbox",
    "/p/shop/inbox?kind=unassigned",
    "/p/shop/inbox?kind=side",
    "/p/shop/datasets",
    "/p/shop/datasets/{dataset}",
    "/p/shop/snapshots/{snapshot}",
    "/p/shop/exports",
    "/p/shop/imports",
    "/p/shop/agents",
    "/p/shop/agents/clerk",
)
ENDPOINTS = (
    "/api/v1/trajectories",
    "/api/v1/trajectories?has_reward=1&state=complete&prefix_break=edit&q=parcel",
    "/api/v1/trajectories/{trajectory}",
    "/api/v1/trajectories/{trajectory}/steps?tokens=1",
    "/api/v1/trajectories/{trajectory}/tokens",
    "/api/v1/hints",
    "/api/v1/inbox?kind=set_aside",
    "/api/v1/inbox?kind=unassigned",
    "/api/v1/inbox?kind=side",
    "/api/v1/views",
    "/api/v1/bulk-jobs",
    "/api/v1/bulk-jobs/{job}/failures",
    "/api/v1/datasets",
    "/api/v1/datasets/{dataset}/trajectories",
    "/api/v1/datasets/{dataset}/snapshots",
    "/api/v1/snapshots/{snapshot}/entries",
    "/api/v1/exports",
    "/api/v1/imports",
)


@pytest.fixture
def names(project: Project, trainer: User, trajectory: Trajectory) -> dict[str, str]:
    """One of everything that a list shows."""
    caller = Caller(user=trainer)
    TrajectoryTag.objects.create(trajectory=trajectory, name="x")
    LabelFactory.create(trajectory=trajectory)
    dataset: Dataset = create_dataset(project=project, caller=caller, name="d")
    rows = Trajectory.objects.filter(pk=trajectory.pk)
    add_to_dataset(dataset=dataset, caller=caller, trajectories=rows, how=AddedBy.HAND)
    snapshot: Snapshot = take_snapshot(dataset=dataset, caller=caller)
    start_export(project=project, caller=caller, shape=MESSAGES, file_format="jsonl", query="")
    job: BulkJob = start_job(caller=caller, project=project, action=ACTIONS["exclude"], settings={}, query="")
    return {"trajectory": trajectory.pk, "dataset": dataset.pk, "snapshot": snapshot.pk, "job": job.pk}


def check(browser: Client, address: str) -> None:
    with CaptureQueriesContext(
        connection,
    ) as caught:
        response = browser.get(address)
    assert response.status_code == 200, response.content
    asked = [query["sql"] for query in caught.captured_queries]
    assert asked
    for sql in asked:
        assert " OFFSET " not in sql, sql
        if GROWING.search(sql) and sql.startswith("SELECT"):
            assert "LIMIT" in sql or BY_KEY.search(sql.partition(" WHERE ")[2]), sql


@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_for_a_page(owner_browser: Client, names: dict[str, str], page: str) -> None:
    check(owner_browser, page.format(**names))


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_endpoint_asks_for_a_page(key_client: APIClient, names: dict[str, str], endpoint: str) -> None:
    check(key_client, endpoint.format(**names))
