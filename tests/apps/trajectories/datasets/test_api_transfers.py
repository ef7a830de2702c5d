"""Exports, imports and tokens over REST: each endpoint with the same litany."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from asgiref.sync import async_to_sync
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import StreamingHttpResponse
from django.test import AsyncClient
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.feedback.exports import SHAPES
from apps.feedback.importing import reward_imported
from apps.trajectories.datasets import export_job, exporting, import_job, importing
from apps.trajectories.datasets.models import Dataset, DatasetMember, Export, Import
from apps.trajectories.datasets.shapes import TOKENS
from apps.trajectories.models import Trajectory
from tests.apps.trajectories.datasets.import_rows import CHAT
from tests.apps.trajectories.datasets.importer import as_lines
from tests.factories.datasets import DatasetFactory
from tests.factories.trajectories import StepFactory

pytestmark = pytest.mark.django_db

Login = Callable[[User], APIClient]
AddTrajectory = Callable[..., Trajectory]

EXPORTS, IMPORTS = "/api/v1/exports", "/api/v1/imports"
READS = (
    EXPORTS,
    "/api/v1/exports/{export}",
    IMPORTS,
    "/api/v1/imports/{source}",
    "/api/v1/imports/{source}/problems",
    "/api/v1/trajectories/{trajectory}/tokens",
)
WRITES = (EXPORTS, "/api/v1/exports/{export}/cancel", IMPORTS, "/api/v1/imports/{source}/cancel")
NOBODY = {
    "export": "expt_00000000000000000000000000",
    "source": "impt_00000000000000000000000000",
    "trajectory": "traj_00000000000000000000000000",
}


def upload(content: bytes, **fields: Any) -> dict[str, Any]:
    return {"file": SimpleUploadedFile("rows.jsonl", content), **fields}


@pytest.fixture
def export(project: Project, caller: Caller, trajectory: Trajectory) -> Export:
    return exporting.start_export(project=project, caller=caller, shape=TOKENS, file_format="jsonl", query="")


@pytest.fixture
def source(agent: Agent, caller: Caller) -> Import:
    content = as_lines([CHAT, b"{", b"["])
    return importing.start_import(
        agent=agent,
        caller=caller,
        chunks=[content],
        file_name="a.jsonl",
        n_bytes=len(content),
        settings=importing.ImportSettings(),
    )


@pytest.fixture
def ids(export: Export, source: Import, trajectory: Trajectory) -> dict[str, str]:
    return {"export": export.id, "source": source.id, "trajectory": trajectory.id}


class TestDoors:
    @pytest.mark.parametrize("address", READS)
    def test_reading_works(self, address: str, ids: dict[str, str], key_client: APIClient) -> None:
        assert key_client.get(address.format(**ids)).status_code == 200

    @pytest.mark.parametrize("address", READS)
    def test_one_needs_a_key(self, address: str, ids: dict[str, str], anonymous_client: APIClient) -> None:
        assert anonymous_client.get(address.format(**ids)).status_code == 401

    @pytest.mark.parametrize("address", WRITES)
    def test_one_needs_a_key_to_change(self, address: str, ids: dict[str, str], anonymous_client: APIClient) -> None:
        assert anonymous_client.post(address.format(**ids)).status_code == 401

    @pytest.mark.parametrize("address", [address for address in READS if "{" in address])
    def test_another_team_is_told_nothing(self, address: str, ids: dict[str, str], other_client: APIClient) -> None:
        assert other_client.get(address.format(**ids)).status_code == 404

    @pytest.mark.parametrize("address", ["/api/v1/exports/{export}/cancel", "/api/v1/imports/{source}/cancel"])
    def test_another_team_ends_nothing(self, address: str, ids: dict[str, str], other_client: APIClient) -> None:
        assert other_client.post(address.format(**ids)).status_code == 404

    @pytest.mark.parametrize("address", WRITES)
    def test_an_agents_key_changes_nothing(self, address: str, ids: dict[str, str], key_client: APIClient) -> None:
        body: dict[str, Any] = {"shape": "tokens", "query": ""} if address == EXPORTS else {}
        if address == IMPORTS:
            answer = key_client.post(address, upload(b"{}"), format="multipart")
        else:
            answer = key_client.post(address.format(**ids), body)
        assert answer.status_code == 403

    @pytest.mark.parametrize("address", [address for address in READS if "{" in address])
    def test_what_is_not_there(self, address: str, manage_client: APIClient) -> None:
        assert manage_client.get(address.format(**NOBODY)).status_code == 404

    @pytest.mark.parametrize("address", [address for address in WRITES if "{" in address])
    def test_what_is_not_there_is_not_ended(self, address: str, manage_client: APIClient) -> None:
        assert manage_client.post(address.format(**NOBODY)).status_code == 404

    @pytest.mark.parametrize(
        ("method", "address"),
        [
            *[("put", address) for address in READS],
            *[("get", address) for address in WRITES if "{" in address],
            ("post", "/api/v1/exports/{export}/file"),
        ],
    )
    def test_wrong_methods(self, method: str, address: str, ids: dict[str, str], manage_client: APIClient) -> None:
        assert getattr(manage_client, method)(address.format(**ids)).status_code == 405


class TestExports:
    def test_agents_that_the_project_has_not_are_told(
        self, manage_client: APIClient, trajectory: Trajectory, dataset: Dataset
    ) -> None:
        words = "this project has no agent clrk: do you mean clerk?; this project has no agent xyz"
        query = "agent:clerk,xyz,clrk"
        assert manage_client.post(EXPORTS, {"query": query, "shape": "tokens"}).json()["warning"] == words
        added = manage_client.post(f"/api/v1/datasets/{dataset.id}/trajectories", {"query": query}).json()
        assert (added["n_added"], added["warning"]) == (1, words)
        refused = manage_client.post(EXPORTS, {"query": "agent:clrk", "shape": "tokens"})
        assert refused.status_code == 400
        assert refused.json()["detail"] == (
            "there is no trajectory in it: nothing to export; this project has no agent clrk: do you mean clerk?"
        )

    def test_one_is_started_and_fetched(self, manage_client: APIClient, trajectory: Trajectory) -> None:
        answer = manage_client.post(EXPORTS, {"query": "", "shape": "tokens"})
        assert answer.status_code == 201
        started = answer.json()
        assert (started["state"], started["n_total"], started["download_url"]) == ("queued", 1, None)
        assert started["warning"] == ""
        export_job.run_export(started["id"], shapes=SHAPES)
        done = manage_client.get(f"{EXPORTS}/{started['id']}").json()
        assert (done["state"], done["n_done"], done["format"]) == ("done", 1, "jsonl")

        file = async_to_sync(AsyncClient().get)(done["download_url"])
        assert isinstance(file, StreamingHttpResponse)
        assert file["Content-Type"] == "application/x-ndjson"
        assert file["Content-Length"] == str(done["n_bytes"])
        assert ".jsonl" in file["Content-Disposition"]
        assert json.loads(asyncio.run(read_all(file)))["trajectory"] == trajectory.id

    def test_only_who_may_export_is_given_the_link(
        self, key_client: APIClient, manage_client: APIClient, export: Export
    ) -> None:
        export_job.run_export(export.id, shapes=SHAPES)
        assert key_client.get(f"{EXPORTS}/{export.id}").json()["download_url"] is None
        assert manage_client.get(f"{EXPORTS}/{export.id}").json()["download_url"]

    @pytest.mark.parametrize("query", ["", "?token=", "?token=x", "?token=%00"])
    def test_a_link_without_its_token(self, anonymous_client: APIClient, export: Export, query: str) -> None:
        export_job.run_export(export.id, shapes=SHAPES)
        assert anonymous_client.get(f"{EXPORTS}/{export.id}/file{query}").status_code == 403

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"shape": "tokens"},
            {"shape": "odd", "query": ""},
            {"shape": "tokens", "query": "reward<<"},
            {"shape": "tokens", "query": "", "format": "csv"},
            {"shape": "tokens", "query": "", "dataset": "x", "more": 1},
        ],
    )
    def test_a_bad_body(self, manage_client: APIClient, trajectory: Trajectory, body: dict[str, Any]) -> None:
        assert manage_client.post(EXPORTS, body).status_code == 400

    def test_another_teams_dataset(self, manage_client: APIClient) -> None:
        body = {"dataset": DatasetFactory.create().id, "shape": "tokens"}
        assert manage_client.post(EXPORTS, body).status_code == 404

    def test_it_is_cancelled_once(self, manage_client: APIClient, export: Export) -> None:
        assert manage_client.post(f"{EXPORTS}/{export.id}/cancel").json()["state"] == "cancelled"
        assert manage_client.post(f"{EXPORTS}/{export.id}/cancel").status_code == 409

    def test_they_are_listed(self, key_client: APIClient, other_client: APIClient, export: Export) -> None:
        assert [item["id"] for item in key_client.get(EXPORTS).json()["items"]] == [export.id]
        assert other_client.get(EXPORTS).json()["items"] == []


async def read_all(response: StreamingHttpResponse) -> bytes:
    return b"".join([chunk async for chunk in response])


class TestImports:
    def test_a_file_is_sent_and_its_report_read(self, manage_client: APIClient, dataset: Dataset) -> None:
        content = as_lines([CHAT, b"{"])
        fields = {"format": "openai", "channel": "val", "on_error": "rest", "dataset": dataset.id}
        answer = manage_client.post(IMPORTS, upload(content, **fields), format="multipart")
        assert answer.status_code == 201
        started = answer.json()
        assert (started["state"], started["agent"], started["file_name"]) == ("queued", "clerk", "rows.jsonl")
        import_job.run_import(started["id"], reward=reward_imported)
        done = manage_client.get(f"{IMPORTS}/{started['id']}").json()
        assert (done["state"], done["n_imported"], done["n_refused"]) == ("done", 1, 1)
        (problem,) = manage_client.get(f"{IMPORTS}/{started['id']}/problems").json()["items"]
        assert (problem["line"], "not JSON" in problem["reason"]) == (2, True)
        assert Trajectory.objects.get().channel == "val"
        assert DatasetMember.objects.get().dataset == dataset

    def test_the_report_pages(self, manage_client: APIClient, source: Import) -> None:
        import_job.run_import(source.pk, reward=reward_imported)
        address = f"{IMPORTS}/{source.pk}/problems"
        first = manage_client.get(f"{address}?limit=1").json()
        second = manage_client.get(f"{address}?limit=1&after={first['next_after']}").json()
        assert [first["items"][0]["line"], second["items"][0]["line"]] == [2, 3]
        assert second["next_after"] is None
        assert manage_client.get(f"{address}?after=x").status_code == 400

    @pytest.mark.parametrize(
        "fields", [{"format": "odd"}, {"channel": "odd"}, {"on_error": "odd"}, {"again": "odd"}, {"more": "1"}]
    )
    def test_a_bad_form(self, manage_client: APIClient, fields: dict[str, str]) -> None:
        assert manage_client.post(IMPORTS, upload(b"{}", **fields), format="multipart").status_code == 400

    def test_no_file_and_an_empty_one(self, manage_client: APIClient) -> None:
        for fields in ({"format": "auto"}, upload(b"")):
            answer = manage_client.post(IMPORTS, fields, format="multipart")
            assert (answer.status_code, answer.json()["field"]) == (400, "file")

    def test_json_is_no_form(self, manage_client: APIClient) -> None:
        assert manage_client.post(IMPORTS, {"format": "auto"}).status_code == 415

    def test_a_person_names_the_agent(self, client_of: Login, trainer: User, agent: Agent) -> None:
        client, address = client_of(trainer), f"{IMPORTS}?project=shop"
        assert client.post(address, upload(b"{}"), format="multipart").json()["field"] == "agent"
        assert client.post(address, upload(b"{}", agent="nobody"), format="multipart").status_code == 404
        assert client.post(address, upload(b"{}", agent="clerk"), format="multipart").status_code == 201

    def test_it_is_cancelled_once(self, manage_client: APIClient, source: Import) -> None:
        assert manage_client.post(f"{IMPORTS}/{source.id}/cancel").json()["state"] == "cancelled"
        assert manage_client.post(f"{IMPORTS}/{source.id}/cancel").status_code == 409


class TestMembersBySearch:
    def test_all_that_it_finds_are_added(
        self, key_client: APIClient, dataset: Dataset, add_trajectory: AddTrajectory
    ) -> None:
        good = add_trajectory(reward=1.0)
        add_trajectory(reward=-1.0)
        answer = key_client.post(f"/api/v1/datasets/{dataset.id}/trajectories", {"query": "reward>0"})
        assert answer.json() == {"n_added": 1, "n_trajectories": 1, "warning": ""}
        member = DatasetMember.objects.get()
        assert (member.trajectory, member.query) == (good, "reward>0")

    @pytest.mark.parametrize("body", [{"query": "reward<<"}, {"query": "", "trajectories": [NOBODY["trajectory"]]}])
    def test_a_bad_body(self, key_client: APIClient, dataset: Dataset, body: dict[str, Any]) -> None:
        assert key_client.post(f"/api/v1/datasets/{dataset.id}/trajectories", body).status_code == 400


class TestTokens:
    @pytest.fixture
    def address(self, trajectory: Trajectory) -> str:
        StepFactory.create(trajectory=trajectory, index=1, prompt_ids=[1, 2, 3, 4, 5, 6])
        return f"/api/v1/trajectories/{trajectory.id}/tokens"

    def test_as_json_by_pages(self, key_client: APIClient, address: str) -> None:
        first = key_client.get(f"{address}?limit=1").json()
        assert [row["prompt_ids"] for row in first["items"]] == [[1, 2, 3]]
        second = key_client.get(f"{address}?limit=1&after={first['next_after']}").json()
        assert [row["index"] for row in second["items"]] == [1]
        assert second["next_after"] is None

    def test_the_rows_are_counted_as_exports_count_them(
        self, key_client: APIClient, trajectory: Trajectory, address: str
    ) -> None:
        StepFactory.create(trajectory=trajectory, index=2, prompt_ids=[], completion_ids=[])
        assert [row["n_rows"] for row in key_client.get(address).json()["items"]] == [2, 2]

    @pytest.mark.parametrize("by_header", [True, False])
    def test_as_arrow(self, key_client: APIClient, address: str, by_header: bool) -> None:
        media_type = "application/vnd.apache.arrow.stream"
        if by_header:
            answer = key_client.get(f"{address}?limit=1", headers={"accept": media_type})
        else:
            answer = key_client.get(f"{address}?limit=1&format=arrow")
        assert (answer["Content-Type"], answer["X-Next-After"]) == (media_type, "0")
        (row,) = pa.ipc.open_stream(answer.content).read_all().to_pylist()
        assert (row["completion_ids"], row["mask"], row["logprobs"]) == ([4, 5], [1, 1], [-0.5, -0.5])

    def test_as_parquet(self, key_client: APIClient, address: str) -> None:
        answer = key_client.get(f"{address}?format=parquet")
        assert answer["Content-Type"] == "application/vnd.apache.parquet"
        assert pq.read_table(pa.BufferReader(answer.content)).column("index").to_pylist() == [0, 1]

    def test_errors_stay_json(self, key_client: APIClient, address: str) -> None:
        answer = key_client.get(f"{address}?format=arrow&limit=0")
        assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
        assert json.loads(answer.content)["field"] == "limit"
        assert key_client.get(f"{address}?format=csv").status_code == 404
