"""Datasets, snapshots, exports and imports on their pages."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from pytest_django.fixtures import Settings

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.console.queries.home import read_loop, read_set_up
from apps.console.queries.models import read_model_line
from apps.feedback.exports import SHAPES
from apps.feedback.importing import reward_imported
from apps.feedback.preferences.services import add_correction
from apps.registry.models import Version
from apps.trajectories.datasets import export_job, exporting, import_job
from apps.trajectories.datasets.models import Dataset, DatasetMember, Export, Import, Snapshot, SnapshotEntry
from apps.trajectories.datasets.services import take_snapshot
from apps.trajectories.datasets.shapes import TOKENS
from apps.trajectories.models import Trajectory
from apps.trajectories.services import set_rewards
from tests.factories.datasets import DatasetFactory, MemberFactory

AddTrajectory = Callable[..., Trajectory]
LIST, EXPORTS, IMPORTS = "/p/shop/datasets", "/p/shop/exports", "/p/shop/imports"
PAGES = (
    LIST,
    "/p/shop/datasets/{dataset}",
    "/p/shop/snapshots/{snapshot}",
    "/p/shop/snapshots/{snapshot}/diff?base={snapshot}",
    EXPORTS,
    IMPORTS,
    "/p/shop/imports/{source}",
)
REVIEWER, TRAINER = "reviewer", "trainer"
CHANGES = (
    (LIST, REVIEWER),
    ("/p/shop/datasets/{dataset}/add", REVIEWER),
    ("/p/shop/datasets/{dataset}/remove", REVIEWER),
    ("/p/shop/datasets/{dataset}/describe", REVIEWER),
    ("/p/shop/datasets/{dataset}/delete", TRAINER),
    ("/p/shop/datasets/{dataset}/snapshots", REVIEWER),
    (EXPORTS, TRAINER),
    ("/p/shop/exports/{export}/cancel", TRAINER),
    (IMPORTS, TRAINER),
    ("/p/shop/imports/{source}/cancel", TRAINER),
)
LINE = b'{"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": "Fine."}]}\n'


@pytest.fixture(autouse=True)
def data_dir(settings: Settings, tmp_path: Path) -> None:
    """Files of exports and imports go here."""
    settings.CLAW = settings.CLAW.model_copy(update={"data_dir": tmp_path})


@pytest.fixture
def dataset(project: Project) -> Dataset:
    return DatasetFactory.create(project=project, name="Refunds", description="late ones")


@pytest.fixture
def snapshot(dataset: Dataset, owner: User, add_trajectory: AddTrajectory) -> Snapshot:
    MemberFactory.create(dataset=dataset, trajectory=add_trajectory(reward=0.5))
    return take_snapshot(dataset=dataset, caller=Caller(user=owner), note="before the sale")


@pytest.fixture
def export(project: Project, owner: User, snapshot: Snapshot) -> Export:
    caller = Caller(user=owner)
    return exporting.start_export(project=project, caller=caller, snapshot=snapshot, shape=TOKENS, file_format="jsonl")


@pytest.fixture
def source(trainer_browser: Client, agent: Agent) -> Import:
    """A file with a good line and a bad one, sent by the form."""
    send(trainer_browser, LINE + b"{\n")
    return Import.objects.get()


@pytest.fixture
def ids(dataset: Dataset, snapshot: Snapshot, export: Export, source: Import) -> dict[str, str]:
    return {"dataset": dataset.id, "snapshot": snapshot.id, "export": export.id, "source": source.id}


def send(browser: Client, content: bytes, **fields: str) -> str:
    file = SimpleUploadedFile("talks.jsonl", content)
    return browser.post(IMPORTS, {"file": file, "agent": "clerk", **fields}).content.decode()


class TestDoors:
    @pytest.mark.parametrize("address", PAGES)
    def test_members_see_the_page(self, address: str, ids: dict[str, str], viewer_browser: Client) -> None:
        response = viewer_browser.get(address.format(**ids))
        assert response.status_code == 200
        html = response.content.decode()
        assert " style=" not in html
        assert 'data-go="d" aria-current="page"' in html

    @pytest.mark.parametrize("address", [*PAGES, "/p/shop/exports/{export}/file", "/p/shop/snapshots/{snapshot}/train"])
    def test_others_do_not(
        self, address: str, ids: dict[str, str], stranger_browser: Client, anonymous_browser: Client
    ) -> None:
        assert stranger_browser.get(address.format(**ids)).status_code == 404
        assert anonymous_browser.get(address.format(**ids)).status_code == 302

    @pytest.mark.parametrize(("address", "role"), CHANGES)
    def test_changes_need_the_role(
        self, address: str, role: str, ids: dict[str, str], viewer_browser: Client, reviewer_browser: Client
    ) -> None:
        for browser in [viewer_browser, *([reviewer_browser] if role == TRAINER else [])]:
            response = browser.post(address.format(**ids))
            assert response.status_code == 403
            assert role in response.content.decode()

    @pytest.mark.parametrize("address", [address for address, _ in CHANGES if address not in PAGES])
    def test_changes_cannot_be_linked_to(self, address: str, ids: dict[str, str], owner_browser: Client) -> None:
        assert owner_browser.get(address.format(**ids)).status_code == 405

    @pytest.mark.parametrize(
        "address", [*PAGES[1:4], PAGES[6], "/p/shop/exports/{export}/file", "/p/shop/snapshots/{snapshot}/train"]
    )
    def test_what_is_not_there(self, address: str, agent: Agent, owner_browser: Client) -> None:
        nobody = "00000000000000000000000000"
        named = {"dataset": f"dset_{nobody}", "snapshot": f"snap_{nobody}"}
        named |= {"export": f"expt_{nobody}", "source": f"impt_{nobody}"}
        assert owner_browser.get(address.format(**named)).status_code == 404

    def test_another_project_of_the_same_person_has_other_ones(
        self, owner_browser: Client, owner: User, project: Project, ids: dict[str, str]
    ) -> None:
        Project.objects.create(team=project.team, name="Other", slug="other")
        for address in (*PAGES[1:4], PAGES[6], "/p/shop/exports/{export}/file", "/p/shop/snapshots/{snapshot}/train"):
            other = address.replace("/p/shop/", "/p/other/")
            assert owner_browser.get(other.format(**ids)).status_code == 404

    @pytest.mark.parametrize("name", ["dataset", "snapshot", "export", "source"])
    def test_short_links_lead_there(self, name: str, ids: dict[str, str], viewer_browser: Client) -> None:
        response = viewer_browser.get(f"/x/{ids[name]}")
        assert response.status_code == 302
        assert ids[name] in response["Location"]


class TestDatasets:
    def test_one_is_made(self, reviewer_browser: Client, project: Project) -> None:
        response = reviewer_browser.post(LIST, {"name": "Refunds", "description": "late"})
        made = Dataset.objects.get()
        assert response["Location"] == f"{LIST}/{made.id}"
        again = reviewer_browser.post(LIST, {"name": "Refunds"})
        html = again.content.decode()
        assert (again.status_code, 'value="Refunds"' in html, "already" in html) == (409, True, True)

    def test_it_shows_what_is_in_it(
        self, viewer_browser: Client, dataset: Dataset, add_trajectory: AddTrajectory
    ) -> None:
        MemberFactory.create(dataset=dataset, trajectory=add_trajectory(reward=0.5))
        html = viewer_browser.get(f"{LIST}/{dataset.id}").content.decode()
        assert "Where is my parcel?" in html
        assert "late ones" in html
        assert "1 from +0.4 to +0.6" in html

    def test_trajectories_come_by_id_and_by_search_and_go(
        self, reviewer_browser: Client, dataset: Dataset, add_trajectory: AddTrajectory
    ) -> None:
        one, good = add_trajectory(), add_trajectory(reward=1.0)
        address = f"{LIST}/{dataset.id}"
        reviewer_browser.post(f"{address}/add", {"ids": one.id})
        reviewer_browser.post(f"{address}/add", {"query": "reward>0"})
        assert set(DatasetMember.objects.values_list("trajectory", flat=True)) == {one.id, good.id}
        reviewer_browser.post(f"{address}/remove", {"trajectory": [one.id]})
        assert DatasetMember.objects.get().trajectory == good

    def test_an_agent_that_the_project_has_not_is_told(
        self, reviewer_browser: Client, dataset: Dataset, add_trajectory: AddTrajectory
    ) -> None:
        add_trajectory()
        address = f"{LIST}/{dataset.id}"
        for query, n in (("agent:clrk", 0), ("-agent:clrk", 1)):
            html = reviewer_browser.post(f"{address}/add", {"query": query}, follow=True).content.decode()
            assert f"{n} added." in html
            assert "This project has no agent clrk: do you mean clerk?" in html

    @pytest.mark.parametrize("fields", [{}, {"ids": "x"}, {"query": "reward<<"}, {"query": "a", "ids": "b"}])
    def test_what_cannot_be_put_in_keeps_the_form(
        self, reviewer_browser: Client, dataset: Dataset, fields: dict[str, str]
    ) -> None:
        response = reviewer_browser.post(f"{LIST}/{dataset.id}/add", fields)
        assert response.status_code in {400, 404}
        assert 'role="alert"' in response.content.decode()

    def test_it_is_called_something_else(self, reviewer_browser: Client, project: Project, dataset: Dataset) -> None:
        address = f"/p/shop/datasets/{dataset.pk}"
        told = {"name": "Refunds of spring", "description": "All of them"}
        assert reviewer_browser.post(f"{address}/describe", told).status_code == 302
        html = reviewer_browser.get(address).text
        assert "<h1>Refunds of spring</h1>" in html
        assert "All of them" in html
        DatasetFactory.create(project=project, name="Taken")
        for name, status, said in (("Taken", 409, "named &#x27;Taken&#x27; already"), (" ", 400, "name")):
            answer = reviewer_browser.post(f"{address}/describe", {**told, "name": name})
            assert answer.status_code == status
            assert said in answer.text
        assert Dataset.objects.get(pk=dataset.pk).name == "Refunds of spring"

    def test_it_is_deleted_unless_something_refers_to_it(
        self, trainer_browser: Client, project: Project, dataset: Dataset, snapshot: Snapshot, trajectory: Trajectory
    ) -> None:
        kept = trainer_browser.post(f"/p/shop/datasets/{snapshot.dataset_id}/delete")
        assert kept.status_code == 409
        assert "A dataset with snapshots or exports stays" in kept.text
        bare = DatasetFactory.create(project=project, name="Bare")
        MemberFactory.create(dataset=bare, trajectory=trajectory)
        gone = trainer_browser.post(f"/p/shop/datasets/{bare.pk}/delete", follow=True)
        assert "Bare is deleted; its trajectories are where they were." in gone.text
        assert not Dataset.objects.filter(pk=bare.pk).exists()
        assert Trajectory.objects.filter(pk=trajectory.pk, deleted_at=None).exists()

    def test_an_empty_one_is_not_frozen(self, reviewer_browser: Client, dataset: Dataset) -> None:
        response = reviewer_browser.post(f"{LIST}/{dataset.id}/snapshots")
        assert response.status_code == 400
        assert "nothing to freeze" in response.content.decode()


class TestSnapshots:
    def test_it_shows_the_rewards_of_then(self, viewer_browser: Client, snapshot: Snapshot) -> None:
        trajectory = Trajectory.objects.get()
        set_rewards({trajectory.pk: -1.0}, step_rewards={})
        html = viewer_browser.get(f"/p/shop/snapshots/{snapshot.id}").content.decode()
        assert "+0.50" in html
        assert "−1.00" not in html
        assert snapshot.checksum in html
        trajectory.delete()
        assert "deleted since" in viewer_browser.get(f"/p/shop/snapshots/{snapshot.id}").content.decode()

    def test_it_says_how_many_judgements_it_holds(
        self, viewer_browser: Client, owner: User, dataset: Dataset, snapshot: Snapshot
    ) -> None:
        step = Trajectory.objects.get().steps.get()
        add_correction(caller=Caller(user=owner), step=step, message="soon")
        before, now = snapshot, take_snapshot(dataset=dataset, caller=Caller(user=owner))
        old = Snapshot.objects.create(dataset=dataset, number=9)  # as those from before judgements were kept
        parts = {"n_steps": 1, "end_index": 1, "n_prompt_tokens": 0, "n_completion_tokens": 0, "content": ""}
        SnapshotEntry.objects.create(snapshot=old, trajectory_id=step.trajectory_id, **parts)
        told = ("None<", "1 preference (1 of them a correction)<", "Not kept: it was taken before")
        for one, words in zip((before, now, old), told, strict=True):
            assert (
                f"Beside rewards</dt><dd>{words}" in viewer_browser.get(f"/p/shop/snapshots/{one.pk}").content.decode()
            )

    def test_what_changed(
        self, reviewer_browser: Client, dataset: Dataset, snapshot: Snapshot, add_trajectory: AddTrajectory
    ) -> None:
        MemberFactory.create(dataset=dataset, trajectory=add_trajectory(title="A new one"))
        response = reviewer_browser.post(f"{LIST}/{dataset.id}/snapshots", {"note": "after"})
        now = Snapshot.objects.get(number=2)
        assert response["Location"] == f"/p/shop/snapshots/{now.id}"
        assert "changes since 1" in reviewer_browser.get(f"{LIST}/{dataset.id}").content.decode()
        html = reviewer_browser.get(f"/p/shop/snapshots/{now.id}/diff?base={snapshot.id}").content.decode()
        assert "1 added, 0 removed" in html
        assert "A new one" in html
        removed = reviewer_browser.get(f"/p/shop/snapshots/{now.id}/diff?base={snapshot.id}&kind=removed")
        assert "Nothing removed" in removed.content.decode()


class TestExports:
    def test_it_is_started_followed_and_fetched(self, trainer_browser: Client, snapshot: Snapshot) -> None:
        fields = {"snapshot": snapshot.id, "shape": "tokens", "format": "jsonl"}
        assert trainer_browser.post(EXPORTS, fields)["Location"] == EXPORTS
        export = Export.objects.get()
        assert "queued" in trainer_browser.get(EXPORTS).content.decode()
        assert trainer_browser.get(f"{EXPORTS}/{export.id}/file").status_code == 409
        export_job.run_export(export.id, shapes=SHAPES)
        assert "Download" in trainer_browser.get(EXPORTS).content.decode()
        link = trainer_browser.get(f"{EXPORTS}/{export.id}/file")["Location"]
        assert link.startswith(f"/api/v1/exports/{export.id}/file?token=")

    def test_an_agent_that_the_project_has_not_is_told(
        self, trainer_browser: Client, add_trajectory: AddTrajectory
    ) -> None:
        add_trajectory()
        fields = {"shape": "messages", "format": "jsonl", "query": "agent:clrk"}
        refused = trainer_browser.post(EXPORTS, fields)
        assert refused.status_code == 400
        words = "his project has no agent clrk: do you mean clerk?"
        assert words in refused.content.decode()
        started = trainer_browser.post(EXPORTS, {**fields, "query": "-agent:clrk"}, follow=True)
        assert "The export is queued." in started.content.decode()
        assert words in started.content.decode()

    def test_a_search_comes_with_the_address(self, trainer_browser: Client, project: Project) -> None:
        assert 'value="reward&gt;0"' in trainer_browser.get(f"{EXPORTS}?q=reward%3E0").content.decode()

    def test_a_reviewer_follows_and_fetches_nothing(self, reviewer_browser: Client, export: Export) -> None:
        export_job.run_export(export.id, shapes=SHAPES)
        assert "Download" not in reviewer_browser.get(EXPORTS).content.decode()
        assert reviewer_browser.get(f"{EXPORTS}/{export.id}/file").status_code == 403

    @pytest.mark.parametrize(
        "fields", [{"shape": "odd", "format": "jsonl"}, {"shape": "tokens", "format": "jsonl", "query": "reward<<"}]
    )
    def test_a_bad_form_says_what_is_wrong(
        self, trainer_browser: Client, project: Project, fields: dict[str, str]
    ) -> None:
        response = trainer_browser.post(EXPORTS, fields)
        assert response.status_code == 400
        assert 'role="alert"' in response.content.decode()

    @pytest.mark.parametrize("source", ["snapshot", "dataset"])
    def test_what_was_refused_stands_in_the_form_as_it_was_chosen(
        self, trainer_browser: Client, snapshot: Snapshot, source: str
    ) -> None:
        ids = {"snapshot": snapshot.id, "dataset": snapshot.dataset_id}
        fields = {source: ids[source], "shape": "preference", "format": "parquet"}
        html = trainer_browser.post(EXPORTS, fields).content.decode()
        assert "othing in it was compared, ranked or corrected" in html
        chosen = {
            "snapshot": f'name="snapshot" value="{snapshot.id}"',
            "dataset": f'value="{snapshot.dataset_id}" selected',
        }
        assert chosen[source] in html
        assert ('name="query"' in html) == (source == "dataset")
        assert 'value="preference" selected' in html
        assert 'value="parquet" selected' in html

    def test_it_is_cancelled(self, trainer_browser: Client, export: Export) -> None:
        trainer_browser.post(f"{EXPORTS}/{export.id}/cancel")
        assert "cancelled" in trainer_browser.get(EXPORTS).content.decode()


class TestImports:
    def test_the_report_tells_each_bad_line(self, trainer_browser: Client, source: Import) -> None:
        address = f"{IMPORTS}/{source.id}"
        assert "queued" in trainer_browser.get(address).content.decode()
        import_job.run_import(source.pk, reward=reward_imported)
        html = trainer_browser.get(address).content.decode()
        assert '<td class="num">2</td><td class="wrap">this is not JSON' in html
        assert "1 came in, 1 was refused: why stands below" in html
        assert '<progress class="bar" data-tone="" ' in html
        assert '<a class="button" href="/p/shop/trajectories?agent=clerk">' in html
        assert "talks.jsonl" in trainer_browser.get(IMPORTS).content.decode()
        assert "runs/new?recipe.algorithm=sft&amp;selection.agent=clerk" in html
        row = Trajectory.objects.get()
        assert row.title == "Weather?"
        assert "tokens not counted" in trainer_browser.get(f"/p/shop/trajectories/{row.pk}").content.decode()

    @pytest.mark.parametrize(
        ("counts", "words"),
        [
            ((1200, 0, 0), "all of it came in<"),
            ((0, 2, 0), "nothing new came in, the project had all of it already<"),
            ((3, 1200, 0), "3 came in, 1,200 the project had already<"),
            ((0, 1, 2), "nothing new came in, 1 the project had already, 2 were refused: why stands below<"),
            ((0, 0, 1), "nothing new came in, 1 was refused: why stands below<"),
            ((0, 0, 0), "there was nothing in it<"),
        ],
    )
    def test_the_report_says_what_was_new(
        self, trainer_browser: Client, source: Import, counts: tuple[int, int, int], words: str
    ) -> None:
        n_imported, n_known, n_refused = counts
        rows = Import.objects.filter(pk=source.pk)
        rows.update(state="done", n_imported=n_imported, n_known=n_known, n_refused=n_refused)
        assert words in trainer_browser.get(f"{IMPORTS}/{source.id}").content.decode()

    def test_what_came_by_it_is_marked_and_counts_as_no_versions_word(
        self, trainer_browser: Client, project: Project, source: Import, base: Version
    ) -> None:
        import_job.run_import(source.pk, reward=reward_imported)
        row = Trajectory.objects.get()
        row.steps.update(version=base)  # as of an export of ours, which names its versions
        listed = trainer_browser.get("/p/shop/trajectories").content.decode().split(f'id="{row.pk}"')[1]
        assert ">import</span>" in listed
        assert "and not how long it took" in listed
        assert "0.00 s" not in listed
        assert f'href="{IMPORTS}/{source.id}"' in trainer_browser.get(f"/p/shop/trajectories/{row.pk}").content.decode()
        line = read_model_line(project)
        assert line is not None
        assert [one.n_trajectories for one in line.rows] == [0]
        assert str(read_loop(project).served) == "0"
        assert not read_set_up(project).has_call

    def test_the_form_chooses(self, trainer_browser: Client, dataset: Dataset, agent: Agent) -> None:
        send(trainer_browser, LINE, dataset=dataset.id, channel="val", on_error="all", again="1", row_format="openai")
        source = Import.objects.get()
        assert (source.dataset, source.channel, source.row_format) == (dataset, "val", "openai")
        assert (source.is_all_or_none, source.is_again) == (True, True)

    def test_the_form_says_that_two_shapes_of_one_export_are_twice_the_same(
        self, trainer_browser: Client, agent: Agent
    ) -> None:
        assert "Of one export import the messages or the tokens" in trainer_browser.get(IMPORTS).content.decode()

    @pytest.mark.parametrize("fields", [{"agent": "nobody"}, {"row_format": "odd"}, {"dataset": "x"}])
    def test_a_bad_form_says_what_is_wrong(self, trainer_browser: Client, agent: Agent, fields: dict[str, str]) -> None:
        assert 'role="alert"' in send(trainer_browser, LINE, **fields)
        assert not Import.objects.exists()

    def test_a_project_without_an_agent_is_told_to_make_one(self, trainer_browser: Client, project: Project) -> None:
        html = trainer_browser.get(IMPORTS).content.decode()
        assert 'href="/p/shop/agents">make one first' in html
        assert 'type="file"' not in html

    def test_no_file(self, trainer_browser: Client, agent: Agent) -> None:
        response = trainer_browser.post(IMPORTS, {"agent": "clerk"})
        assert response.status_code == 400
        assert "Choose a file" in response.content.decode()

    def test_it_is_cancelled(self, trainer_browser: Client, source: Import) -> None:
        trainer_browser.post(f"{IMPORTS}/{source.id}/cancel")
        assert "cancelled" in trainer_browser.get(f"{IMPORTS}/{source.id}").content.decode()
