"""Datasets and snapshots over REST: each endpoint with the same litany."""

from collections.abc import Callable
from typing import Any

import pytest
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.trajectories.datasets.models import Dataset, DatasetMember, Snapshot
from apps.trajectories.datasets.services import take_snapshot
from apps.trajectories.models import Trajectory
from tests.factories.datasets import DatasetFactory, MemberFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
AddTrajectory = Callable[..., Trajectory]

LIST = "/api/v1/datasets"
ONE = "/api/v1/datasets/{dataset}"
MEMBERS = "/api/v1/datasets/{dataset}/trajectories"
REMOVE = "/api/v1/datasets/{dataset}/trajectories/remove"
SNAPSHOTS = "/api/v1/datasets/{dataset}/snapshots"
SNAPSHOT = "/api/v1/snapshots/{snapshot}"
ENTRIES = "/api/v1/snapshots/{snapshot}/entries"
DIFF = "/api/v1/snapshots/{snapshot}/diff?base={snapshot}"
READS = (LIST, ONE, MEMBERS, SNAPSHOTS, SNAPSHOT, ENTRIES, DIFF)
WRITES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("post", LIST, {"name": "New"}),
    ("patch", ONE, {"name": "Renamed"}),
    ("delete", ONE, {}),
    ("post", MEMBERS, {"trajectories": ["traj_00000000000000000000000000"]}),
    ("post", REMOVE, {"trajectories": ["traj_00000000000000000000000000"]}),
    ("post", SNAPSHOTS, {}),
)
NOBODY = {"dataset": "dset_00000000000000000000000000", "snapshot": "snap_00000000000000000000000000"}


@pytest.fixture
def snapshot(dataset: Dataset, caller: Caller, trajectory: Trajectory) -> Snapshot:
    MemberFactory.create(dataset=dataset, trajectory=trajectory)
    return take_snapshot(dataset=dataset, caller=caller)


@pytest.fixture
def ids(dataset: Dataset, snapshot: Snapshot) -> dict[str, str]:
    return {"dataset": dataset.id, "snapshot": snapshot.id}


def call(client: APIClient, method: str, address: str, body: dict[str, Any]) -> Any:
    return getattr(client, method)(address, body)


class TestDoors:
    @pytest.mark.parametrize("address", READS)
    def test_reading_works(self, address: str, ids: dict[str, str], key_client: APIClient) -> None:
        assert key_client.get(address.format(**ids)).status_code == 200

    @pytest.mark.parametrize(
        ("method", "address"), [*[("get", read) for read in READS], *[write[:2] for write in WRITES]]
    )
    def test_one_needs_a_key(self, method: str, address: str, ids: dict[str, str], anonymous_client: APIClient) -> None:
        assert call(anonymous_client, method, address.format(**ids), {}).status_code == 401

    @pytest.mark.parametrize("address", [address for address in READS if address != LIST])
    def test_another_team_is_told_nothing(self, address: str, ids: dict[str, str], other_client: APIClient) -> None:
        assert other_client.get(address.format(**ids)).status_code == 404

    @pytest.mark.parametrize(("method", "address", "body"), WRITES[1:])
    def test_another_team_changes_nothing(
        self, method: str, address: str, body: dict[str, Any], ids: dict[str, str], other_client: APIClient
    ) -> None:
        assert call(other_client, method, address.format(**ids), body).status_code == 404

    def test_another_team_lists_its_own(self, ids: dict[str, str], other_client: APIClient) -> None:
        assert other_client.get(LIST).json() == {"items": [], "next_before": None}
        assert other_client.get(f"{LIST}?project=shop").status_code == 404

    @pytest.mark.parametrize(("method", "address", "body"), WRITES)
    def test_a_viewer_changes_nothing(
        self, method: str, address: str, body: dict[str, Any], ids: dict[str, str], client_of: Login, viewer: User
    ) -> None:
        where = f"{LIST}?project=shop" if address == LIST else address.format(**ids)
        assert call(client_of(viewer), method, where, body).status_code == 403

    @pytest.mark.parametrize("address", [*READS[1:], REMOVE])
    def test_what_is_not_there(self, address: str, key_client: APIClient, trajectory: Trajectory) -> None:
        method = "post" if address == REMOVE else "get"
        body = {"trajectories": [trajectory.id]} if address == REMOVE else {}
        assert call(key_client, method, address.format(**NOBODY), body).status_code == 404

    @pytest.mark.parametrize(
        ("method", "address"),
        [
            ("put", LIST),
            ("post", ONE),
            ("put", MEMBERS),
            ("get", REMOVE),
            ("put", SNAPSHOTS),
            ("post", SNAPSHOT),
            ("delete", SNAPSHOT),
            ("patch", SNAPSHOT),
            ("post", ENTRIES),
            ("post", DIFF),
        ],
    )
    def test_wrong_methods(self, method: str, address: str, ids: dict[str, str], key_client: APIClient) -> None:
        assert call(key_client, method, address.format(**ids), {}).status_code == 405


class TestDatasets:
    def test_it_is_made_named_anew_and_deleted(self, manage_client: APIClient) -> None:
        answer = manage_client.post(LIST, {"name": "Refunds", "description": "late ones"})
        assert answer.status_code == 201
        made = answer.json()
        assert (made["name"], made["n_trajectories"]) == ("Refunds", 0)
        one = f"{LIST}/{made['id']}"
        assert manage_client.patch(one, {"description": "all"}).json()["description"] == "all"
        assert manage_client.get(one).json()["name"] == "Refunds"
        assert manage_client.delete(one).status_code == 204
        assert not Dataset.objects.exists()

    @pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "n" * 101}, {"name": "x", "owner": "me"}])
    def test_a_bad_body(self, key_client: APIClient, body: dict[str, Any]) -> None:
        assert key_client.post(LIST, body).status_code == 400

    def test_the_same_name_twice(self, key_client: APIClient, dataset: Dataset) -> None:
        answer = key_client.post(LIST, {"name": "Refunds"})
        assert (answer.status_code, answer.json()["field"]) == (409, "name")
        other = DatasetFactory.create(project=dataset.project)
        assert key_client.patch(f"{LIST}/{other.id}", {"name": "Refunds"}).status_code == 409

    def test_one_with_snapshots_is_not_deleted(self, manage_client: APIClient, ids: dict[str, str]) -> None:
        assert manage_client.delete(ONE.format(**ids)).status_code == 409

    def test_it_pages(self, key_client: APIClient, dataset: Dataset) -> None:
        other = DatasetFactory.create(project=dataset.project)
        first = key_client.get(f"{LIST}?limit=1").json()
        assert [item["id"] for item in first["items"]] == [other.id]
        second = key_client.get(f"{LIST}?limit=1&before={first['next_before']}").json()
        assert [item["id"] for item in second["items"]] == [dataset.id]


class TestMembers:
    def test_they_come_and_go(self, key_client: APIClient, dataset: Dataset, add_trajectory: AddTrajectory) -> None:
        rows = [add_trajectory() for _ in range(3)]
        members = MEMBERS.format(dataset=dataset.id)
        answer = key_client.post(members, {"trajectories": [row.id for row in rows]})
        assert answer.json() == {"n_added": 3, "n_trajectories": 3, "warning": ""}
        page = key_client.get(f"{members}?limit=2").json()
        assert [item["id"] for item in page["items"]] == [rows[2].id, rows[1].id]
        assert page["next_before"] == rows[1].id
        removal = REMOVE.format(dataset=dataset.id)
        answer = key_client.post(removal, {"trajectories": [rows[0].id]})
        assert answer.json() == {"n_removed": 1, "n_trajectories": 2}

    @pytest.mark.parametrize("body", [{}, {"trajectories": []}, {"trajectories": "traj_1"}, {"ids": []}])
    def test_a_bad_body(self, key_client: APIClient, dataset: Dataset, body: dict[str, Any]) -> None:
        for address in (MEMBERS, REMOVE):
            assert key_client.post(address.format(dataset=dataset.id), body).status_code == 400

    def test_another_teams_trajectory_is_none(self, key_client: APIClient, dataset: Dataset) -> None:
        stray = MemberFactory.create().trajectory
        answer = key_client.post(MEMBERS.format(dataset=dataset.id), {"trajectories": [stray.id]})
        assert answer.status_code == 404
        assert not DatasetMember.objects.filter(dataset=dataset).exists()


class TestSnapshots:
    def test_one_is_taken_and_read(self, key_client: APIClient, dataset: Dataset, trajectory: Trajectory) -> None:
        MemberFactory.create(dataset=dataset, trajectory=trajectory)
        answer = key_client.post(SNAPSHOTS.format(dataset=dataset.id), {"note": "first"})
        assert answer.status_code == 201
        taken = answer.json()
        assert (taken["number"], taken["note"], taken["n_trajectories"]) == (1, "first", 1)
        assert taken["created_by"].startswith("key ")
        assert key_client.get(SNAPSHOT.format(snapshot=taken["id"])).json() == taken
        entry = key_client.get(ENTRIES.format(snapshot=taken["id"])).json()["items"][0]
        assert (entry["trajectory"], entry["reward"]) == (trajectory.id, 0.5)

    def test_an_empty_dataset(self, key_client: APIClient, dataset: Dataset) -> None:
        answer = key_client.post(SNAPSHOTS.format(dataset=dataset.id), {})
        assert (answer.status_code, answer.json()["field"]) == (400, "dataset")

    def test_a_bad_body(self, key_client: APIClient, ids: dict[str, str]) -> None:
        assert key_client.post(SNAPSHOTS.format(**ids), {"note": "n" * 201}).status_code == 400

    @pytest.mark.parametrize("query", ["", "?base=%00", "?base={snapshot}&kind=odd", "?base={snapshot}&after=x"])
    def test_a_bad_question(self, key_client: APIClient, ids: dict[str, str], query: str) -> None:
        address = f"/api/v1/snapshots/{ids['snapshot']}/diff{query.format(**ids)}"
        assert key_client.get(address).status_code in {400, 404}

    def test_what_changed(
        self, key_client: APIClient, ids: dict[str, str], dataset: Dataset, add_trajectory: AddTrajectory
    ) -> None:
        fresh = add_trajectory(reward=1.0)
        MemberFactory.create(dataset=dataset, trajectory=fresh)
        now = key_client.post(SNAPSHOTS.format(**ids), {}).json()["id"]
        answer = key_client.get(f"/api/v1/snapshots/{now}/diff?base={ids['snapshot']}&kind=added").json()
        assert answer["counts"] == {"added": 1, "removed": 0, "changed": 0}
        assert answer["items"] == [
            {
                "trajectory": fresh.id,
                "kind": "added",
                "reward_before": None,
                "reward_after": 1.0,
                "n_steps_before": None,
                "n_steps_after": 1,
            }
        ]
