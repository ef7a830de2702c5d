"""Jobs over many trajectories: done piece by piece, once, with what failed, and taken back as a whole."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.errors import Conflict, Forbidden, NotFound
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.models import Label
from apps.feedback.rescoring import change_schema
from apps.feedback.services import Answer, add_label, add_labels
from apps.trajectories.bulk import running, services
from apps.trajectories.bulk.models import BulkChange, BulkJob, TrajectoryTag
from apps.trajectories.datasets.services import create_dataset, delete_dataset
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.services import find_trajectory
from tests.factories.accounts import ApiKeyFactory
from tests.factories.trajectories import ExchangeFactory, StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db
Start = Callable[..., BulkJob]


@pytest.fixture
def rows(agent: Agent) -> list[Trajectory]:
    """Five trajectories, oldest first; the first has an error."""
    return [TrajectoryFactory.create(agent=agent, has_error=index == 0) for index in range(5)]


@pytest.fixture
def start(project: Project, trainer: User) -> Start:
    """Return a function that starts a job and does it."""

    def start_and_run(action: str, *, by: User = trainer, **fields: Any) -> BulkJob:
        settings: dict[str, Any] = {
            name: fields.pop(name) for name in ("value", "text", "tag", "channel", "dataset") if name in fields
        }
        job = services.start_job(
            caller=Caller(user=by), project=project, action=ACTIONS[action], settings=settings, **fields
        )
        running.run_job(job.pk, actions=ACTIONS)
        job.refresh_from_db()
        return job

    return start_and_run


def undo(job: BulkJob, by: User) -> BulkJob:
    services.undo_job(caller=Caller(user=by), job=job, action=ACTIONS[job.action])
    running.run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    return job


def facts(rows: list[Trajectory]) -> list[tuple[Any, ...]]:
    fresh = Trajectory.objects.filter(pk__in=[row.pk for row in rows]).order_by("pk").prefetch_related("tags")
    return [
        (
            row.reward,
            row.is_excluded,
            row.channel,
            (row.state, row.completed_at),
            row.deleted_at is None,
            sorted(tag.name for tag in row.tags.all()),
        )
        for row in fresh
    ]


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("reward", {"value": 0.5, "text": "all fine"}),
        ("tag", {"tag": "later"}),
        ("untag", {"tag": "known"}),
        ("channel", {"channel": "val"}),
        ("exclude", {}),
        ("include", {}),
        ("delete", {}),
    ],
)
def test_each_action_changes_the_rows_and_is_taken_back_whole(
    action: str, told: dict[str, Any], rows: list[Trajectory], start: Start, trainer: User, agent: Agent
) -> None:
    other = TrajectoryFactory.create(agent=agent)
    Trajectory.objects.filter(pk=rows[1].pk).update(is_excluded=True, channel="val")
    TrajectoryTag.objects.create(trajectory=rows[2], name="known")
    add_label(caller=Caller(user=trainer), trajectory=rows[3], value=-1.0, text="bad")
    before, untouched = facts(rows), facts([other])
    job = start(action, ids=[row.pk for row in rows], **told)
    assert (job.state, job.n_total, job.n_done, job.n_failed) == ("done", 5, 5, 0)
    assert facts(rows) != before
    assert facts([other]) == untouched
    assert undo(job, trainer).state == "undone"
    assert facts(rows) == before


def test_rewards_are_taken_back_whatever_the_score_schema_weighs(
    rows: list[Trajectory], start: Start, trainer: User, mate: User, project: Project
) -> None:
    """The reward of a project with a schema of its own is what all fields add up to; a job speaks of one of them."""
    fields = [
        {"name": "reward", "kind": "number", "low": -1, "high": 1, "title": "On the whole", "weight": 2},
        {"name": "stars", "kind": "scale", "low": 1, "high": 5, "low_reward": 0, "weight": 3},
        {"name": "tone", "kind": "choice", "choices": [{"name": "kind", "reward": 0.4}, {"name": "odd"}]},
        {"name": "polite", "kind": "binary", "high_reward": 0.2},
    ]
    change_schema(caller=Caller(user=trainer), project=project, definition={"fields": fields})
    everything = [
        Answer(field="reward", value=-0.25, text="slow"),
        Answer(field="stars", value=4),
        Answer(field="tone", value="kind"),
        Answer(field="polite", value=False),
    ]
    for row, answers in zip(rows, (everything, everything[:1], everything[1:], everything[2:3], []), strict=True):
        for user in (trainer, mate) if answers else ():
            add_labels(caller=Caller(user=user), trajectory=row, answers=answers)
    before, said = facts(rows), say_standing()
    assert len({row[0] for row in before}) == 5
    job = start("reward", value=1, ids=[row.pk for row in rows])
    assert (job.n_failed, facts(rows) == before) == (0, False)
    assert undo(job, trainer).state == "undone"
    assert (facts(rows), say_standing()) == (before, said)


def say_standing() -> list[tuple[Any, ...]]:
    """Return what stands of all labels."""
    told = ("trajectory", "author", "field", "value", "said", "text")
    return sorted(Label.objects.standing().values_list(*told), key=str)


def test_a_search_means_all_that_it_found_then(rows: list[Trajectory], start: Start, agent: Agent) -> None:
    job = start("tag", tag="seen", query="-has:error")
    late = TrajectoryFactory.create(agent=agent)
    running.run_job(job.pk, actions=ACTIONS)
    assert (job.n_total, job.n_done) == (4, 4)
    tagged = set(TrajectoryTag.objects.values_list("trajectory_id", flat=True))
    assert tagged == {row.pk for row in rows[1:]}
    assert late.pk not in tagged


def test_rows_that_match_no_more_after_the_change_do_not_stop_it(
    rows: list[Trajectory], start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PIECE", 2)
    job = start("reward", value=1, query="reward:none")
    assert (job.n_total, job.n_done, job.n_failed) == (5, 5, 0)
    assert not Trajectory.objects.filter(reward=None).exists()


def test_a_job_goes_on_where_a_worker_died(
    rows: list[Trajectory], start: Start, project: Project, trainer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PIECE", 2)
    job = services.start_job(
        caller=Caller(user=trainer), project=project, action=ACTIONS["reward"], settings={"value": 1.0}, query=""
    )
    assert running._do_piece(job.pk, actions=ACTIONS)
    running.run_job(job.pk, actions=ACTIONS)
    running.run_job(job.pk, actions=ACTIONS)
    assert Label.objects.count() == 5
    job.refresh_from_db()
    assert (job.state, job.n_done) == ("done", 5)


def test_others_have_their_turn(
    rows: list[Trajectory], project: Project, trainer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(running, "PIECE", 2)
    job = services.start_job(
        caller=Caller(user=trainer), project=project, action=ACTIONS["exclude"], settings={}, query=""
    )
    monkeypatch.setattr(running, "queue_task", lambda _name, job_id: sent.append(job_id))
    for n_done in (2, 4, 5):
        running.run_job(job.pk, actions=ACTIONS, slice_s=-1)
        job.refresh_from_db()
        assert job.n_done == n_done
    assert (job.state, sent) == ("done", [job.pk, job.pk])


def test_what_cannot_be_changed_is_listed_and_stops_nothing(rows: list[Trajectory], start: Start) -> None:
    foreign, missing = TrajectoryFactory.create(), new_id("traj")
    job = start("exclude", ids=[rows[0].pk, foreign.pk, missing])
    assert (job.n_done, job.n_failed) == (1, 2)
    failures = {change.trajectory_id: change.error for change in services.list_failures(job)}
    assert set(failures) == {foreign.pk, missing}
    assert set(failures.values()) == {running.GONE}
    foreign.refresh_from_db()
    assert not foreign.is_excluded


def test_a_job_that_was_taken_back_on_its_way_leaves_nothing(
    rows: list[Trajectory], project: Project, trainer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "PIECE", 2)
    caller = Caller(user=trainer)
    job = services.start_job(caller=caller, project=project, action=ACTIONS["tag"], settings={"tag": "x"}, query="")
    running._do_piece(job.pk, actions=ACTIONS)
    assert undo(job, trainer).state == "undone"
    assert not TrajectoryTag.objects.exists()
    with pytest.raises(Conflict, match="once"):
        services.undo_job(caller=caller, job=job, action=ACTIONS["tag"])


def test_what_was_changed_since_stays_after_an_undo(rows: list[Trajectory], start: Start, trainer: User) -> None:
    job = start("reward", value=1, ids=[row.pk for row in rows])
    add_label(caller=Caller(user=trainer), trajectory=rows[0], value=-0.5)
    undo(job, trainer)
    assert [fact[0] for fact in facts(rows)] == [-0.5, None, None, None, None]


def test_an_old_job_can_no_longer_be_taken_back(rows: list[Trajectory], start: Start, trainer: User) -> None:
    job = start("exclude", query="")
    job.created_at = timezone.now() - services.UNDO_FOR - timedelta(minutes=1)
    with pytest.raises(Conflict, match="7 days"):
        services.undo_job(caller=Caller(user=trainer), job=job, action=ACTIONS["exclude"])


def test_rows_are_completed_and_opened_again_where_nobody_went_on(
    rows: list[Trajectory], start: Start, trainer: User, agent: Agent
) -> None:
    Trajectory.objects.filter(pk=rows[0].pk).update(state="complete", completed_at=timezone.now())
    Trajectory.objects.filter(pk=rows[1].pk).update(session_key="s", key=ApiKeyFactory.create(agent=agent))
    job = start("complete", query="")
    assert (job.n_done, job.n_failed) == (5, 0)
    assert set(Trajectory.objects.values_list("state", flat=True)) == {"complete"}
    rows[1].refresh_from_db()
    TrajectoryFactory.create(agent=agent, key=rows[1].key, session_key="s")  # the session began anew
    Trajectory.objects.filter(pk=rows[2].pk).update(completed_at=timezone.now())  # somebody completed it since
    undo(job, trainer)
    states = Trajectory.objects.filter(pk__in=[row.pk for row in rows]).order_by("pk")
    assert [row.state for row in states] == ["complete"] * 3 + ["open"] * 2
    assert [row.completed_at is None for row in states] == [False] * 3 + [True] * 2


def test_rows_go_into_a_dataset_and_out_again(
    rows: list[Trajectory], start: Start, project: Project, trainer: User
) -> None:
    dataset = create_dataset(project=project, caller=Caller(user=trainer), name="d")
    start("dataset", dataset=dataset.pk, ids=[rows[0].pk])
    job = start("dataset", dataset=dataset.pk, query="")
    assert dataset.members.count() == 5
    undo(job, trainer)
    assert [member.trajectory_id for member in dataset.members.all()] == [rows[0].pk]


def test_deleting_needs_a_trainer(rows: list[Trajectory], start: Start, mate: User) -> None:
    with pytest.raises(Forbidden, match="trainer"):
        start("delete", by=mate, query="")


def test_what_is_deleted_is_gone_for_everybody_and_its_session_begins_anew(
    rows: list[Trajectory], start: Start, trainer: User
) -> None:
    start("delete", ids=[rows[0].pk])
    with pytest.raises(NotFound):
        find_trajectory(caller=Caller(user=trainer), trajectory_id=rows[0].pk)
    rows[0].refresh_from_db()
    assert rows[0].state == "complete"


def test_an_open_session_that_was_deleted_goes_on_after_the_undo_unless_it_began_anew(
    rows: list[Trajectory], start: Start, trainer: User, agent: Agent
) -> None:
    Trajectory.objects.filter(pk__in=[row.pk for row in rows[:2]]).update(session_key=F("id"))
    Trajectory.objects.filter(pk=rows[2].pk).update(state="complete", completed_at=timezone.now())
    job = start("delete", query="")
    key = ApiKeyFactory.create(agent=agent)
    Trajectory.objects.update(key=key)
    TrajectoryFactory.create(agent=agent, key=key, session_key=rows[1].pk)
    undo(job, trainer)
    states = dict(Trajectory.objects.filter(deleted_at=None).values_list("pk", "state"))
    assert [states[row.pk] for row in rows] == ["open", "complete", "complete", "open", "open"]


def test_what_a_job_works_with_may_be_deleted_before_it_begins_and_before_its_undo(
    rows: list[Trajectory], start: Start, project: Project, trainer: User
) -> None:
    caller = Caller(user=trainer)
    late, gone = (create_dataset(project=project, caller=caller, name=name) for name in ("late", "gone"))
    settings = {"dataset": gone.pk}
    job = services.start_job(caller=caller, project=project, action=ACTIONS["dataset"], settings=settings, query="")
    delete_dataset(dataset=gone, caller=caller)
    running.run_job(job.pk, actions=ACTIONS)
    job.refresh_from_db()
    assert (job.state, job.n_done, job.n_failed) == ("done", 0, 5)
    assert "no dataset" in services.list_failures(job)[0].error
    done = start("dataset", dataset=late.pk, query="")
    delete_dataset(dataset=late, caller=caller)
    assert undo(done, trainer).state == "undone"


def test_deleted_rows_are_removed_for_good_with_their_calls_when_nobody_can_undo_it(
    rows: list[Trajectory], start: Start, project: Project, trainer: User
) -> None:
    for row in rows[:2]:
        StepFactory.create(trajectory=row, exchange_id=ExchangeFactory.create().id)
    start("delete", ids=[rows[0].pk])
    assert running.purge_deleted() == 0
    long_ago = timezone.now() - services.UNDO_FOR - timedelta(minutes=1)
    Trajectory.objects.filter(pk=rows[0].pk).update(deleted_at=long_ago)
    assert running.purge_deleted() == 1
    assert set(Trajectory.objects.values_list("pk", flat=True)) == {row.pk for row in rows[1:]}
    assert (Step.objects.count(), Exchange.objects.count()) == (1, 1)


def test_a_silent_job_is_queued_again(
    rows: list[Trajectory], project: Project, trainer: User, django_capture_on_commit_callbacks: Any, monkeypatch: Any
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(running, "queue_task", lambda _name, job_id: sent.append(job_id))
    job = services.start_job(
        caller=Caller(user=trainer), project=project, action=ACTIONS["exclude"], settings={}, query=""
    )
    running.resend_jobs()
    assert sent == []
    BulkJob.objects.update(touched_at=timezone.now() - timedelta(minutes=2))
    running.resend_jobs()
    assert sent == [job.pk]


def test_old_changes_are_forgotten(rows: list[Trajectory], start: Start) -> None:
    start("exclude", ids=[rows[0].pk, new_id("traj")])
    BulkJob.objects.update(created_at=timezone.now() - services.UNDO_FOR - timedelta(minutes=1))
    running.purge_deleted()
    assert [change.error for change in BulkChange.objects.all()] == [running.GONE]
