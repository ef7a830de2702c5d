"""Datasets and snapshots: what they take, what they keep, and what nobody can change."""

from collections.abc import Callable

import pytest
from django.db import IntegrityError, connection, transaction

from apps.accounts.access import Caller
from apps.accounts.models import AuditEvent, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.trajectories.datasets import services
from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember, Snapshot, SnapshotEntry
from apps.trajectories.datasets.queries import count_differences, diff_snapshots, read_histogram, read_totals
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import set_rewards
from tests.factories.datasets import DatasetFactory, MemberFactory
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

AddTrajectory = Callable[..., Trajectory]


def add(dataset: Dataset, caller: Caller, *trajectories: Trajectory) -> int:
    return services.add_ids_to_dataset(dataset=dataset, caller=caller, ids=[row.id for row in trajectories])


@pytest.fixture
def snapshot(dataset: Dataset, caller: Caller, trajectory: Trajectory) -> Snapshot:
    add(dataset, caller, trajectory)
    return services.take_snapshot(dataset=dataset, caller=caller)


class TestMembers:
    def test_a_trajectory_is_in_it_once(self, dataset: Dataset, caller: Caller, trajectory: Trajectory) -> None:
        assert add(dataset, caller, trajectory) == 1
        assert add(dataset, caller, trajectory) == 0
        dataset.refresh_from_db()
        assert dataset.n_trajectories == 1
        member = DatasetMember.objects.get()
        assert (member.added_how, member.added_by) == (AddedBy.HAND, "owner@example.org")

    def test_a_search_adds_only_its_own_projects(
        self, dataset: Dataset, caller: Caller, trajectory: Trajectory
    ) -> None:
        TrajectoryFactory.create()
        added = services.add_to_dataset(
            dataset=dataset,
            caller=caller,
            trajectories=Trajectory.objects.all(),
            how=AddedBy.SEARCH,
            query="reward>0",
        )
        assert added == 1
        assert DatasetMember.objects.get().query == "reward>0"

    def test_a_strangers_trajectory_stops_all(self, dataset: Dataset, caller: Caller, trajectory: Trajectory) -> None:
        with pytest.raises(NotFound, match="nothing was added"):
            add(dataset, caller, trajectory, TrajectoryFactory.create())
        assert not DatasetMember.objects.exists()

    def test_the_count_follows_what_is_taken_out_and_deleted(
        self, dataset: Dataset, caller: Caller, add_trajectory: AddTrajectory
    ) -> None:
        rows = [add_trajectory() for _ in range(3)]
        add(dataset, caller, *rows)
        assert services.remove_from_dataset(dataset=dataset, caller=caller, ids=[rows[0].id, rows[0].id]) == 1
        rows[1].delete()
        dataset.refresh_from_db()
        assert dataset.n_trajectories == 1

    def test_a_viewer_changes_nothing(self, dataset: Dataset, viewer: User, trajectory: Trajectory) -> None:
        with pytest.raises(Forbidden):
            add(dataset, Caller(user=viewer), trajectory)

    def test_totals_and_histogram(self, dataset: Dataset, caller: Caller, add_trajectory: AddTrajectory) -> None:
        rewards = (-1.0, -0.95, 0.0, 0.01, 1.0, None)
        add(dataset, caller, *[add_trajectory(reward=reward) for reward in rewards])
        dataset.refresh_from_db()
        totals = read_totals(dataset)
        assert (totals.n_trajectories, totals.n_rewarded, totals.n_steps) == (6, 5, 6)
        assert (totals.n_prompt_tokens, totals.n_completion_tokens, totals.is_partial) == (18, 12, False)
        assert totals.mean_reward == pytest.approx(-0.188)
        assert [bar.n for bar in totals.histogram] == [2, 0, 0, 0, 1, 1, 0, 0, 0, 1]
        snapshot = services.take_snapshot(dataset=dataset, caller=caller)
        assert read_histogram(snapshot) == totals.histogram


class TestDatasets:
    def test_names_are_unique_in_a_project(self, project: Project, dataset: Dataset, caller: Caller) -> None:
        with pytest.raises(Conflict, match="Refunds"):
            services.create_dataset(project=project, caller=caller, name=" Refunds ")
        other = services.create_dataset(project=project, caller=caller, name="Other")
        with pytest.raises(Conflict):
            services.describe_dataset(dataset=other, caller=caller, name="Refunds", description=None)

    @pytest.mark.parametrize("fields", [{"name": " "}, {"name": "n" * 101}, {"name": "a\0"}, {"description": "\ud800"}])
    def test_bad_texts_are_refused(self, project: Project, caller: Caller, fields: dict[str, str]) -> None:
        with pytest.raises(InvalidInput):
            services.create_dataset(project=project, caller=caller, **{"name": "x", **fields})

    def test_one_with_snapshots_stays(self, dataset: Dataset, caller: Caller, snapshot: Snapshot) -> None:
        with pytest.raises(Conflict, match="snapshots"):
            services.delete_dataset(dataset=dataset, caller=caller)

    def test_one_without_goes_and_its_trajectories_stay(self, dataset: Dataset, caller: Caller) -> None:
        member = MemberFactory.create(dataset=dataset)
        services.delete_dataset(dataset=dataset, caller=caller)
        assert not Dataset.objects.exists()
        assert Trajectory.objects.filter(pk=member.trajectory_id).exists()
        assert AuditEvent.objects.get(action="dataset.deleted").object_id == dataset.id


class TestSnapshots:
    def test_it_holds_what_was_selected_and_the_rewards_of_that_moment(
        self, dataset: Dataset, caller: Caller, trajectory: Trajectory
    ) -> None:
        step = StepFactory.create(trajectory=trajectory, index=1, reward=0.25)
        rows = Trajectory.objects.filter(pk=trajectory.pk)
        services.add_to_dataset(dataset=dataset, caller=caller, trajectories=rows, how=AddedBy.SEARCH, query="reward>0")
        snapshot = services.take_snapshot(dataset=dataset, caller=caller, note="before the sale")
        set_rewards({trajectory.pk: -1.0}, step_rewards={step.id: -1.0})
        StepFactory.create(trajectory=trajectory, index=2)
        entry = snapshot.entries.get()
        assert (entry.reward, entry.step_rewards, entry.n_steps, entry.end_index) == (0.5, {"1": 0.25}, 2, 2)
        assert (snapshot.number, snapshot.note, snapshot.created_by) == (1, "before the sale", "owner@example.org")
        assert (snapshot.queries, snapshot.n_trajectories, snapshot.n_steps) == (["reward>0"], 1, 2)
        assert (snapshot.n_prompt_tokens, snapshot.n_completion_tokens, snapshot.mean_reward) == (6, 4, 0.5)
        assert snapshot.checksum == services.compute_checksum(snapshot)

    def test_equal_ones_have_equal_checksums(
        self, dataset: Dataset, caller: Caller, snapshot: Snapshot, trajectory: Trajectory
    ) -> None:
        again = services.take_snapshot(dataset=dataset, caller=caller)
        assert (again.number, again.checksum) == (2, snapshot.checksum)
        set_rewards({trajectory.pk: 0.75}, step_rewards={})
        assert services.take_snapshot(dataset=dataset, caller=caller).checksum != snapshot.checksum

    def test_it_outlives_its_trajectories(self, snapshot: Snapshot, trajectory: Trajectory) -> None:
        trajectory_id = trajectory.id
        trajectory.delete()
        assert snapshot.entries.get().trajectory_id == trajectory_id

    def test_an_empty_dataset_has_nothing_to_freeze(self, dataset: Dataset, caller: Caller) -> None:
        with pytest.raises(InvalidInput, match="nothing to freeze"):
            services.take_snapshot(dataset=dataset, caller=caller)
        assert not Snapshot.objects.exists()

    @pytest.mark.parametrize("table", [Snapshot, SnapshotEntry])
    def test_the_database_lets_nothing_change(
        self, snapshot: Snapshot, table: type[Snapshot] | type[SnapshotEntry]
    ) -> None:
        change = {"note": "x"} if table is Snapshot else {"reward": 1.0}
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
            table.objects.update(**change)
        with pytest.raises(IntegrityError, match="never changes"), transaction.atomic():
            table.objects.all()._raw_delete(table.objects.db)
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what is pending stands in TRUNCATE's way
            with pytest.raises(IntegrityError, match="never changes"):
                cursor.execute(f"TRUNCATE {table._meta.db_table} CASCADE")

    def test_the_database_lets_nothing_be_added(self, snapshot: Snapshot) -> None:
        entry = snapshot.entries.get()
        entry.pk, entry.trajectory_id = None, "traj_other"
        with pytest.raises(IntegrityError, match="never changes"):
            entry.save(force_insert=True)


class TestDiff:
    def test_it_tells_added_removed_and_changed_by_pages(
        self, dataset: Dataset, caller: Caller, add_trajectory: AddTrajectory
    ) -> None:
        gone, same, judged, grown = (add_trajectory(reward=0.5) for _ in range(4))
        add(dataset, caller, gone, same, judged, grown)
        before = services.take_snapshot(dataset=dataset, caller=caller)
        services.remove_from_dataset(dataset=dataset, caller=caller, ids=[gone.id])
        set_rewards({judged.pk: None}, step_rewards={})
        StepFactory.create(trajectory=grown, index=1)
        fresh = add_trajectory()
        add(dataset, caller, fresh)
        now = services.take_snapshot(dataset=dataset, caller=caller)

        first = diff_snapshots(before, now, limit=3)
        second = diff_snapshots(before, now, limit=3, after=first.next_after)
        assert second.next_after is None
        told = {item.trajectory_id: item.kind for item in (*first.items, *second.items)}
        assert told == {gone.id: "removed", judged.id: "changed", grown.id: "changed", fresh.id: "added"}
        change = next(item for item in first.items if item.trajectory_id == judged.id)
        assert (change.reward_before, change.reward_after) == (0.5, None)
        assert count_differences(before, now) == {"added": 1, "removed": 1, "changed": 2}
        assert [item.trajectory_id for item in diff_snapshots(before, now, kind="added").items] == [fresh.id]

    def test_a_steps_reward_is_a_change(
        self, dataset: Dataset, caller: Caller, snapshot: Snapshot, trajectory: Trajectory
    ) -> None:
        set_rewards({trajectory.pk: 0.5}, step_rewards={Step.objects.get().id: 0.1})
        now = services.take_snapshot(dataset=dataset, caller=caller)
        assert [item.kind for item in diff_snapshots(snapshot, now).items] == ["changed"]

    def test_nothing_changed(self, dataset: Dataset, caller: Caller, snapshot: Snapshot) -> None:
        now = services.take_snapshot(dataset=dataset, caller=caller)
        assert diff_snapshots(snapshot, now).items == []
        assert sum(count_differences(snapshot, now).values()) == 0

    def test_two_projects_are_not_compared(self, snapshot: Snapshot) -> None:
        elsewhere = Snapshot(dataset=DatasetFactory.create(), number=1)
        with pytest.raises(InvalidInput, match="one project"):
            diff_snapshots(snapshot, elsewhere)
