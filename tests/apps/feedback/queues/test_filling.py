"""What comes into a queue, and how queues are made."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.accounts.models import AuditEvent, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound, ServiceError
from apps.core.ids import new_id
from apps.feedback.bulk import ACTIONS
from apps.feedback.queues.filling import (
    add_new_matches,
    add_trajectories,
    count_matching,
    fill_queue,
    in_sample,
    tend_queues,
)
from apps.feedback.queues.models import QueueItem, ReviewQueue
from apps.feedback.queues.services import change_queue, create_queue, find_queue, set_state
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.running import run_job
from apps.trajectories.bulk.services import start_job, undo_job
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by
from tests.apps.feedback.queues.test_working import take
from tests.factories.trajectories import TrajectoryFactory

pytestmark = pytest.mark.django_db


def test_a_search_fills_a_queue_and_again_changes_nothing(make_queue: MakeQueue, add: Add) -> None:
    wanted = [add(channel="val") for _ in range(2)]
    for fields in ({"channel": "train"}, {"channel": "val", "state": "open", "completed_at": None}):
        add(**fields)
    queue = make_queue(query="channel:val")
    assert (fill_queue(queue.pk), fill_queue(queue.pk)) == (2, 0)
    assert set(QueueItem.objects.values_list("trajectory", "n_wanted")) == {(row.pk, 2) for row in wanted}
    queue.refresh_from_db()
    assert queue.filled_at is not None


def test_an_open_trajectory_is_added_by_hand(make_queue: MakeQueue, add: Add) -> None:
    row = add(state="open", completed_at=None)
    queue = make_queue(row, query="channel:train")
    assert fill_queue(queue.pk) == 0
    assert list(QueueItem.objects.values_list("trajectory", flat=True)) == [row.pk]


def test_a_sample_is_a_sample_and_the_same_each_time() -> None:
    ids = [new_id("traj") for _ in range(2000)]
    chosen = [one for one in ids if in_sample("q", one, rate=0.1)]
    assert 120 < len(chosen) < 280
    assert chosen == [one for one in ids if in_sample("q", one, rate=0.1)]
    assert set(chosen) < {one for one in ids if in_sample("q", one, rate=0.2)}
    assert all(in_sample("q", one, rate=1) for one in ids)


def test_new_matches_come_by_themselves(make_queue: MakeQueue, add: Add) -> None:
    queue = make_queue(query="channel:val", auto_add=True)
    fill_queue(queue.pk)
    late, other = add(channel="train"), add(channel="val")
    tend_queues()
    assert list(QueueItem.objects.values_list("trajectory", flat=True)) == [other.pk]
    Trajectory.objects.filter(pk=late.pk).update(channel="val")  # began before, matches now
    queue.refresh_from_db()
    assert (add_new_matches(queue), add_new_matches(queue)) == (1, 0)


@pytest.mark.parametrize("change", [{"auto_add": False}, {"state": "paused"}, {"filled_at": None}])
def test_a_queue_that_does_not_want_them_gets_none(make_queue: MakeQueue, add: Add, change: dict[str, Any]) -> None:
    make_queue(query="channel:val", auto_add=True)
    ReviewQueue.objects.update(**{"filled_at": timezone.now(), **change})
    add(channel="val")
    tend_queues()
    assert not QueueItem.objects.exists()


def test_a_lost_filling_is_asked_for_again(
    make_queue: MakeQueue, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with django_capture_on_commit_callbacks() as sent:
        queue = make_queue(query="channel:val")
    assert len(sent) >= 1
    with django_capture_on_commit_callbacks() as sent:
        tend_queues()
    assert sent == []
    ReviewQueue.objects.filter(pk=queue.pk).update(created_at=timezone.now() - timedelta(hours=1))
    with django_capture_on_commit_callbacks() as sent:
        tend_queues()
    assert len(sent) == 1


def test_pairs_are_tries_at_one_task(make_queue: MakeQueue, add: Add) -> None:
    same = [add(group="g") for _ in range(3)]
    asked = [add(title="Where is it?") for _ in range(2)]
    add(title="something else")
    queue = make_queue(query="is:complete", mode="pairs")
    assert fill_queue(queue.pk) == 2
    pairs = [set(pair) for pair in QueueItem.objects.values_list("trajectory", "other")]
    assert {row.pk for row in asked} in pairs
    assert any(pair < {row.pk for row in same} for pair in pairs)
    add(group="g")
    assert fill_queue(queue.pk) == 1  # the third finds its partner


def test_by_hand_only_what_is_there(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, trainer: User, viewer: User
) -> None:
    queue = make_queue()
    elsewhere = TrajectoryFactory.create()
    for ids in ([], [elsewhere.pk], [rows[0].pk, "nonsense"]):
        with pytest.raises(InvalidInput):
            add_trajectories(caller=by(mate), queue=queue, ids=ids)
    with pytest.raises(Forbidden):
        add_trajectories(caller=by(viewer), queue=queue, ids=[rows[0].pk])
    assert [add_trajectories(caller=by(mate), queue=queue, ids=[rows[0].pk]) for _ in range(2)] == [1, 0]
    archived = set_state(caller=by(trainer), queue=queue, state="archived")
    with pytest.raises(Conflict, match="this queue is archived"):
        add_trajectories(caller=by(mate), queue=archived, ids=[rows[1].pk])


def test_a_bulk_job_adds_and_takes_back(make_queue: MakeQueue, rows: list[Trajectory], mate: User) -> None:
    queue = make_queue()
    job = start_job(
        caller=by(mate), project=queue.project, action=ACTIONS["queue"], settings={"queue": queue.pk}, query=""
    )
    run_job(job.pk, actions=ACTIONS)
    assert (QueueItem.objects.count(), BulkJob.objects.get().n_done) == (3, 3)
    begun = take(queue, mate)
    undo_job(caller=by(mate), job=BulkJob.objects.get(), action=ACTIONS["queue"])
    run_job(job.pk, actions=ACTIONS)
    assert QueueItem.objects.get().pk == begun.item_id


@pytest.mark.parametrize("told", [{}, {"queue": "nonsense"}, {"queue": "\x00"}, {"queue": "q", "x": 1}])
def test_a_bulk_job_needs_a_queue(project: Project, mate: User, told: dict[str, Any]) -> None:
    with pytest.raises(ServiceError):
        start_job(caller=by(mate), project=project, action=ACTIONS["queue"], settings=told, query="")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "\x00"}, "name"),
        ({"guideline": "x" * 20_001}, "guideline"),
        ({"mode": "both"}, "mode"),
        ({"n_reviews": 0}, "n_reviews"),
        ({"n_reviews": 11}, "n_reviews"),
        ({"sample_rate": 0}, "sample_rate"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"hold_minutes": 0}, "hold_minutes"),
        ({"tolerance": 2}, "tolerance"),
        ({"query": "colour:red"}, "q"),
        ({"field_names": []}, "field_names"),
        ({"field_names": ["mood"]}, "field"),
        ({"reviewers": ["nobody@example.org"]}, "reviewers"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    project: Project, trainer: User, given: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as error:
        create_queue(caller=by(trainer), project=project, settings={"name": "x", **given})
    assert error.value.field == field
    assert not ReviewQueue.objects.exists()


def test_who_may_make_and_change_queues(
    queue: ReviewQueue, project: Project, trainer: User, mate: User, stranger: User, viewer: User
) -> None:
    for user, error in ((mate, Forbidden), (viewer, Forbidden), (stranger, NotFound)):
        with pytest.raises(error):
            create_queue(caller=by(user), project=project, settings={"name": "x"})
        with pytest.raises(error):
            change_queue(caller=by(user), queue=queue, settings={"name": "x"})
        with pytest.raises(error):
            set_state(caller=by(user), queue=queue, state="paused")
    with pytest.raises(NotFound):
        find_queue(caller=by(stranger), queue_id=queue.pk)
    with pytest.raises(InvalidInput, match="no reviewer"):
        change_queue(caller=by(trainer), queue=queue, settings={"reviewers": [viewer.email]})


def test_a_change_is_for_items_that_nobody_has_begun(queue: ReviewQueue, mate: User, trainer: User) -> None:
    begun = take(queue, mate)
    queue = change_queue(caller=by(trainer), queue=queue, settings={"n_reviews": 3, "guideline": "Be kind."})
    wanted = dict(QueueItem.objects.values_list("pk", "n_wanted"))
    assert (wanted.pop(begun.item_id), set(wanted.values())) == (2, {3})
    with pytest.raises(Conflict, match="keeps its mode"):
        change_queue(caller=by(trainer), queue=queue, settings={"mode": "pairs"})
    actions = AuditEvent.objects.filter(object_id=queue.pk).values_list("action", flat=True)
    assert set(actions) == {"queue.created", "queue.changed"}


def test_two_changes_at_once_both_stay(queue: ReviewQueue, trainer: User) -> None:
    same = ReviewQueue.objects.get(pk=queue.pk)  # as another request has read it
    QueueItem.objects.update(n_wanted=3)  # somebody asked for another opinion
    change_queue(caller=by(trainer), queue=queue, settings={"guideline": "Be kind."})
    changed = change_queue(caller=by(trainer), queue=same, settings={"name": "second"})
    assert (changed.guideline, changed.name) == ("Be kind.", "second")
    assert set(QueueItem.objects.values_list("n_wanted", flat=True)) == {3}


def test_a_name_is_free_again_when_its_queue_is_archived(make_queue: MakeQueue, trainer: User) -> None:
    first = make_queue()
    with pytest.raises(Conflict, match="named 'first' already"):
        make_queue()
    set_state(caller=by(trainer), queue=first, state="archived")
    make_queue()
    with pytest.raises(Conflict, match="another name"):
        set_state(caller=by(trainer), queue=first, state="open")
    with pytest.raises(InvalidInput):
        set_state(caller=by(trainer), queue=first, state="gone")


def test_a_preview_counts(project: Project, add: Add) -> None:
    add(channel="val")
    assert (count_matching(project, "channel:val"), count_matching(project, "channel:train")) == (1, 0)
