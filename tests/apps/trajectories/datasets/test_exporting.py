"""Exports: what stands in the file, what a killed worker leaves, who may fetch it and for how long."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import time_machine
from django.core.signing import TimestampSigner
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project, Team, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.exports import SHAPES, find_shape
from apps.trajectories.datasets import export_job, exporting, storage
from apps.trajectories.datasets.jobs import MAX_TRIES, LostJob, advance_job, claim_job
from apps.trajectories.datasets.models import Dataset, Export, JobState, Snapshot
from apps.trajectories.datasets.row_files import write_rows
from apps.trajectories.datasets.services import add_ids_to_dataset, take_snapshot
from apps.trajectories.datasets.shapes import TOKENS
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import set_rewards
from tests.factories.accounts import ProjectFactory
from tests.factories.datasets import MemberFactory
from tests.factories.trajectories import StepFactory

pytestmark = pytest.mark.django_db

AddTrajectory = Callable[..., Trajectory]
ReadLines = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def start(project: Project, caller: Caller) -> Callable[..., Export]:
    """Return a function that starts an export of the whole project, if nothing else is said."""

    def start(**more: Any) -> Export:
        settings: dict[str, Any] = {"file_format": "jsonl", **more, "shape": find_shape(more.get("shape", "tokens"))}
        if not {"snapshot", "dataset", "query"} & set(more):
            settings["query"] = ""
        return exporting.start_export(project=project, caller=caller, **settings)

    return start


@pytest.fixture
def snapshot(dataset: Dataset, caller: Caller, trajectory: Trajectory) -> Snapshot:
    add_ids_to_dataset(dataset=dataset, caller=caller, ids=[trajectory.id])
    return take_snapshot(dataset=dataset, caller=caller)


def run(export: Export, **more: Any) -> Path:
    export_job.run_export(export.id, shapes=SHAPES, **more)
    export.refresh_from_db()
    return exporting.file_path(export)


class TestTokens:
    def test_a_row_is_a_step(self, start: Callable[..., Export], trajectory: Trajectory, fetch_json: ReadLines) -> None:
        first = Step.objects.get()
        StepFactory.create(trajectory=trajectory, index=1, parent=first, side_call="title", reward=0.25)
        StepFactory.create(trajectory=trajectory, index=2, constraints="min_p")
        (row, side, constrained) = fetch_json(run(start()))
        assert (row["trajectory"], row["agent"], row["trajectory_reward"]) == (trajectory.id, "clerk", 0.5)
        assert (row["prompt_ids"], row["completion_ids"], row["logprobs"]) == ([1, 2, 3], [4, 5], [-0.5, -0.5])
        assert (row["mask"], row["n_rows"], row["index"]) == ([1, 1], 3, 0)
        assert (constrained["mask"], constrained["constraints"]) == ([0, 0], "min_p")
        assert row["answer"] == {"role": "assistant", "content": "hi"}
        assert (side["mask"], side["side_call"], side["reward"]) == ([0, 0], "title", 0.25)

    def test_steps_without_tokens_are_counted(
        self, start: Callable[..., Export], add_trajectory: AddTrajectory
    ) -> None:
        add_trajectory(step={"prompt_ids": [], "completion_ids": [], "is_exact": False})
        export = start()
        assert run(export).read_bytes() == b""
        assert (export.state, export.n_rows, export.n_left_out, export.n_done) == ("done", 0, 1, 1)


class TestMessages:
    def test_a_row_is_a_conversation_and_each_steps_prompt_is_exact(
        self, start: Callable[..., Export], add_trajectory: AddTrajectory, fetch_json: ReadLines
    ) -> None:
        row = add_trajectory(step={"messages": [{"role": "user", "content": "a"}], "text": "b"})
        first = Step.objects.get(trajectory=row)
        StepFactory.create(
            trajectory=row,
            index=1,
            parent=first,
            shared_messages=2,
            messages=[{"role": "user", "content": "c"}],
            text="d",
        )
        StepFactory.create(  # the client took the last message back
            trajectory=row,
            index=2,
            parent=first,
            shared_messages=1,
            messages=[{"role": "user", "content": "e"}],
            text="f",
        )
        told, branch = fetch_json(run(start(shape="messages")))
        assert [message["content"] for message in told["messages"]] == ["a", "b", "c", "d"]
        assert [(turn["index"], turn["at"]) for turn in told["turns"]] == [(0, 1), (1, 3)]
        assert [message["content"] for message in branch["messages"]] == ["a", "e", "f"]
        assert [(turn["index"], turn["at"]) for turn in branch["turns"]] == [(2, 2)]
        assert told["n_rows"] == branch["n_rows"] == 2
        assert told["tools"] == []

    def test_what_no_column_can_hold_stays_escaped(
        self, start: Callable[..., Export], add_trajectory: AddTrajectory, fetch_json: ReadLines
    ) -> None:
        add_trajectory(step={"messages": [{"role": "user", "content": "half \ud800 and \x00"}]})
        assert fetch_json(run(start(shape="messages")))[0]["messages"][0]["content"] == "half \ud800 and \x00"


class TestSources:
    def test_a_snapshot_says_what_it_said_then(
        self, start: Callable[..., Export], snapshot: Snapshot, trajectory: Trajectory, fetch_json: ReadLines
    ) -> None:
        set_rewards({trajectory.pk: -1.0}, step_rewards={})
        StepFactory.create(trajectory=trajectory, index=1)
        (row,) = fetch_json(run(start(snapshot=snapshot)))
        assert (row["trajectory_reward"], row["n_rows"]) == (0.5, 1)

    def test_what_was_deleted_since_is_counted(
        self, start: Callable[..., Export], snapshot: Snapshot, trajectory: Trajectory
    ) -> None:
        trajectory.delete()
        export = start(snapshot=snapshot)
        run(export)
        assert (export.state, export.n_gone, export.n_rows) == ("done", 1, 0)

    def test_what_a_search_finds_no_more_is_counted(
        self, start: Callable[..., Export], add_trajectory: AddTrajectory, fetch_json: ReadLines
    ) -> None:
        made = [add_trajectory().id for _ in range(3)]
        export = start()
        Trajectory.objects.filter(pk__in=made[1:]).update(deleted_at=timezone.now())
        assert [row["trajectory"] for row in fetch_json(run(export))] == made[:1]
        assert (export.state, export.n_total, export.n_done, export.n_gone) == ("done", 3, 3, 2)

    def test_a_dataset_and_a_search(
        self,
        start: Callable[..., Export],
        dataset: Dataset,
        add_trajectory: AddTrajectory,
        fetch_json: ReadLines,
    ) -> None:
        good, bad = add_trajectory(reward=1.0), add_trajectory(reward=-1.0)
        MemberFactory.create(dataset=dataset, trajectory=bad)
        assert [row["trajectory"] for row in fetch_json(run(start(dataset=dataset)))] == [bad.id]
        assert [row["trajectory"] for row in fetch_json(run(start(query="reward>0")))] == [good.id]

    def test_what_comes_later_is_not_in_it(
        self, start: Callable[..., Export], trajectory: Trajectory, add_trajectory: AddTrajectory
    ) -> None:
        export = start()
        add_trajectory()
        run(export)
        assert (export.n_total, export.n_done) == (1, 1)

    def test_an_empty_one_is_refused(self, start: Callable[..., Export], dataset: Dataset) -> None:
        for source in ({"dataset": dataset}, {"query": "reward>0"}):
            with pytest.raises(InvalidInput, match="nothing to export"):
                start(**source)

    def test_a_malformed_search_is_refused(self, start: Callable[..., Export]) -> None:
        with pytest.raises(InvalidInput):
            start(query="reward<<")

    def test_there_is_one_source(self, start: Callable[..., Export], dataset: Dataset) -> None:
        with pytest.raises(InvalidInput, match="one of"):
            start(dataset=dataset, query="")

    def test_another_projects_are_none_of_this_one(
        self, start: Callable[..., Export], snapshot: Snapshot, dataset: Dataset, caller: Caller, team: Team
    ) -> None:
        other = ProjectFactory.create(team=team)
        for source in ({"snapshot": snapshot}, {"dataset": dataset}):
            with pytest.raises(NotFound, match="this project has no"):
                exporting.start_export(project=other, caller=caller, shape=TOKENS, file_format="jsonl", **source)

    def test_a_reviewer_exports_nothing(self, project: Project, mate: User) -> None:
        with pytest.raises(Forbidden):
            exporting.start_export(
                project=project, caller=Caller(user=mate), shape=TOKENS, file_format="jsonl", query=""
            )


class TestParquet:
    @pytest.mark.parametrize("shape", ["tokens", "messages"])
    def test_it_says_the_same(self, start: Callable[..., Export], add_trajectory: AddTrajectory, shape: str) -> None:
        for _ in range(3):
            add_trajectory(reward=0.5, metadata={"task": 3})
        export = start(shape=shape, file_format="parquet")
        table = pq.read_table(run(export, part=2))
        assert (table.num_rows, export.n_rows) == (3, 3)
        row = table.to_pylist()[0]
        assert row["trajectory_metadata"] == '{"task":3}'
        if shape == "tokens":
            assert (row["prompt_ids"], row["logprobs"]) == ([1, 2, 3], [-0.5, -0.5])
        else:
            assert row["messages"].startswith('[{"role":"user","content":"hello"}')


class TestJob:
    def test_a_killed_worker_is_followed_by_one_that_goes_on(
        self,
        start: Callable[..., Export],
        add_trajectory: AddTrajectory,
        fetch_json: ReadLines,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        made = [add_trajectory().id for _ in range(5)]
        export = start()
        parts: list[Path] = []

        def write_and_die(path: Path, *args: Any, **more: Any) -> None:
            write_rows(path, *args, **more)
            parts.append(path)
            if len(parts) == 2:
                raise KeyboardInterrupt  # the second part stands, its row does not say so

        with monkeypatch.context() as patch:
            patch.setattr(export_job, "write_rows", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                export_job.run_export(export.id, shapes=SHAPES, part=2)
        export.refresh_from_db()
        assert (export.state, export.n_done, export.n_parts) == ("running", 2, 1)
        export_job.run_export(export.id, shapes=SHAPES)  # alive as far as anybody can know
        export.refresh_from_db()
        assert export.n_done == 2
        with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=False):
            assert exporting.resend_exports() == 1
            path = run(export, part=2)
        assert [row["trajectory"] for row in fetch_json(path)] == made
        assert (export.state, export.n_done, export.n_rows) == ("done", 5, 5)
        assert export.n_bytes == path.stat().st_size
        assert list(path.parent.iterdir()) == [path]

    def test_others_have_their_turn(self, start: Callable[..., Export], add_trajectory: AddTrajectory) -> None:
        for _ in range(3):
            add_trajectory()
        export = start()
        run(export, part=1, slice_s=-1)
        assert (export.state, export.n_done) == ("queued", 1)
        run(export, part=1)
        assert (export.state, export.n_done) == ("done", 3)

    def test_one_at_which_workers_die_again_and_again_ends_in_words(
        self, start: Callable[..., Export], trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_args: Any, **_more: Any) -> None:
            raise KeyboardInterrupt

        export = start()
        with monkeypatch.context() as patch:
            patch.setattr(export_job, "write_rows", die)
            for turn in range(MAX_TRIES):
                later = timezone.now() + timedelta(minutes=2 * turn)
                with time_machine.travel(later, tick=False), pytest.raises(KeyboardInterrupt):
                    run(export)
        with time_machine.travel(timezone.now() + timedelta(hours=1), tick=False):
            run(export)
        assert (export.state, "5 workers in a row" in export.error) == (JobState.FAILED, True)

    def test_only_the_claims_holder_writes(self, start: Callable[..., Export], trajectory: Trajectory) -> None:
        export = start()
        assert claim_job(Export.objects.all(), export.id)
        assert not claim_job(Export.objects.all(), export.id)
        export.claim = "another"
        with pytest.raises(LostJob):
            advance_job(export, n_done=1)

    def test_it_is_cancelled(self, start: Callable[..., Export], trajectory: Trajectory, caller: Caller) -> None:
        export = start()
        exporting.cancel_export(export=export, caller=caller)
        assert export.state == JobState.CANCELLED
        assert not run(export).exists()
        with pytest.raises(Conflict, match="cancelled"):
            exporting.cancel_export(export=export, caller=caller)

    def test_what_a_killed_worker_left_of_an_ended_one_goes(
        self, start: Callable[..., Export], trajectory: Trajectory
    ) -> None:
        whole, failed = start(), start()
        path = run(whole)
        Export.objects.filter(pk=failed.pk).update(state=JobState.FAILED)
        left = storage.job_folder(failed.id, kind="exports")
        exporting.expire_exports()
        assert (path.exists(), left.exists()) == (True, False)

    def test_a_lost_message_is_sent_again(self, start: Callable[..., Export], trajectory: Trajectory) -> None:
        start()
        assert exporting.resend_exports() == 0
        with time_machine.travel(timezone.now() + timedelta(minutes=3)):
            assert exporting.resend_exports() == 1
            assert exporting.resend_exports() == 0

    def test_a_disk_without_room_is_told_before(
        self, start: Callable[..., Export], trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage, "RESERVE_BYTES", 2**60)
        with pytest.raises(storage.DiskFull, match="make room"):
            start()
        assert not Export.objects.exists()

    def test_a_guess_at_its_size_is_of_all_trajectories(
        self, start: Callable[..., Export], add_trajectory: AddTrajectory
    ) -> None:
        for _ in range(30):
            add_trajectory()
        export = start()
        n_bytes = run(export).stat().st_size
        assert n_bytes / 2 < exporting.estimate_bytes(export, TOKENS) < n_bytes * 2

    def test_a_disk_without_room_for_the_whole_file_fails_it_before_the_parts_are_joined(
        self, start: Callable[..., Export], trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export = start()
        monkeypatch.setattr(storage, "RESERVE_BYTES", 2**60)
        path = run(export)
        assert (export.state, "make room" in export.error) == ("failed", True)
        assert not path.exists()

    def test_a_disk_that_gets_full_fails_it_in_words(
        self, start: Callable[..., Export], trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export = start()

        def write(*_args: Any, **_more: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(export_job, "write_rows", write)
        path = run(export)
        assert (export.state, "disk is full" in export.error) == ("failed", True)
        assert not list(path.parent.iterdir())

    def test_what_breaks_is_told(
        self, start: Callable[..., Export], trajectory: Trajectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        export = start()
        Step.objects.update(answer=b"{")
        run(export)
        assert (export.state, "JSONDecodeError" in export.error) == ("failed", True)


class TestLink:
    def test_it_opens_the_file_for_an_hour(self, start: Callable[..., Export], trajectory: Trajectory) -> None:
        export = start()
        assert exporting.sign_link(export) is None
        path = run(export)
        link = exporting.sign_link(export)
        assert link is not None
        assert exporting.open_link(export.id, token=link[0]) == (export, path)
        with time_machine.travel(timezone.now() + timedelta(hours=2)), pytest.raises(Forbidden, match="expired"):
            exporting.open_link(export.id, token=link[0])

    def test_it_opens_no_other(self, start: Callable[..., Export], trajectory: Trajectory) -> None:
        one, other = start(), start()
        run(one)
        run(other)
        link = exporting.sign_link(one)
        assert link is not None
        for token in (link[0], "", f"{other.id}:forged"):
            with pytest.raises(Forbidden):
                exporting.open_link(other.id, token=token)

    def test_files_go_after_a_week(self, start: Callable[..., Export], trajectory: Trajectory) -> None:
        export = start()
        path = run(export)
        assert exporting.expire_exports() == 0
        with time_machine.travel(timezone.now() + timedelta(days=8)):
            assert exporting.expire_exports() == 1
            fresh = TimestampSigner(salt="claw.export").sign(export.id)
            with pytest.raises(NotFound, match="start a new one"):
                exporting.open_link(export.id, token=fresh)
        export.refresh_from_db()
        assert (export.state, path.exists()) == (JobState.EXPIRED, False)
