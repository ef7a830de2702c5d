"""One reviewer's way through a queue, and several at once."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Membership, Role, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.models import Label
from apps.feedback.preferences.models import Preference
from apps.feedback.preferences.services import add_comparison
from apps.feedback.preferences.sides import Side
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import ItemState, QueueEvent, QueueItem, Review, ReviewQueue, ReviewState
from apps.feedback.queues.services import change_queue, set_state
from apps.feedback.queues.working import (
    Submission,
    find_review,
    put_back_review,
    release_everywhere,
    release_run_out,
    skip_review,
    submit_review,
    take_review,
    undo_review,
)
from apps.feedback.services import add_label, take_back_label
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by, run_at_once

pytestmark = pytest.mark.django_db


def take(queue: ReviewQueue, user: User, besides: str = "") -> Review:
    review = take_review(caller=by(user), queue=queue, besides=besides)
    assert review is not None
    return review


def say(value: float, text: str = "") -> Submission:
    answers: dict[str, Any] = {"reward": {"value": value}}
    return Submission(answers=answers | ({"comment": {"text": text}} if text else {}))


def give(queue: ReviewQueue, user: User, value: float = 1) -> Review:
    return submit_review(caller=by(user), review=take(queue, user), said=say(value))


def run_out(review: Review) -> None:
    Review.objects.filter(pk=review.pk).update(expires_at=timezone.now() - timedelta(seconds=1))


def test_a_review_becomes_labels_and_a_reward(queue: ReviewQueue, mate: User) -> None:
    review = take(queue, mate)
    assert take(queue, mate).pk == review.pk  # a second window sees what is open
    given = submit_review(caller=by(mate), review=review, said=say(0.5, "kind"))
    assert (given.state, given.answers["reward"]["value"], given.seconds) == ("submitted", 0.5, 0)
    assert set(Label.objects.filter(pk__in=given.labels).values_list("field", flat=True)) == {"reward", "comment"}
    item = QueueItem.objects.select_related("trajectory").get(pk=review.item_id)
    assert (item.n_held, item.n_done, item.state, item.trajectory.reward) == (0, 1, "open", 0.5)
    assert take(queue, mate).item_id != item.pk


def test_who_has_left_the_team_has_no_reviews_there(queue: ReviewQueue, mate: User) -> None:
    review = take(queue, mate)
    Membership.objects.filter(user=mate).delete()
    with pytest.raises(NotFound, match="you have no review"):
        find_review(caller=by(mate), review_id=review.pk)


def test_the_next_item_is_held_ahead(queue: ReviewQueue, mate: User) -> None:
    first = take(queue, mate)
    ahead = take(queue, mate, besides=first.pk)
    assert ahead.pk != first.pk
    assert take(queue, mate, besides=first.pk).pk == ahead.pk
    submit_review(caller=by(mate), review=first, said=say(1))
    assert take(queue, mate).pk == ahead.pk


def test_a_person_holds_few_items(make_queue: MakeQueue, add: Add, mate: User) -> None:
    queue = make_queue(*(add() for _ in range(5)))
    for _ in range(3):
        review = take(queue, mate)
        Review.objects.filter(pk=review.pk).update(held_at=timezone.now() + timedelta(days=1))
        assert take(queue, mate, besides=review.pk) != review
    assert Review.objects.held().count() == 2
    item = QueueItem.objects.exclude(reviews__reviewer=mate).first()
    assert item is not None
    with pytest.raises(IntegrityError), transaction.atomic():
        Review.objects.create(queue=queue, item=item, reviewer=mate, slot=0, expires_at=timezone.now())
    with pytest.raises(IntegrityError), transaction.atomic():
        Review.objects.create(queue=queue, item=item, reviewer=mate, slot=3, expires_at=timezone.now())


def test_each_item_gets_as_many_reviews_as_wanted(queue: ReviewQueue, mate: User, second: User, trainer: User) -> None:
    for user in (mate, second):
        for _ in range(3):
            give(queue, user)
    assert take_review(caller=by(mate), queue=queue) is None
    assert take_review(caller=by(trainer), queue=queue) is None  # an owner or trainer may review too; nothing is left
    assert set(QueueItem.objects.values_list("state", "n_done")) == {("done", 2)}
    with pytest.raises(IntegrityError), transaction.atomic():
        QueueItem.objects.update(n_done=3)


def test_the_same_submission_again_changes_nothing(queue: ReviewQueue, mate: User) -> None:
    review = take(queue, mate)
    first = submit_review(caller=by(mate), review=review, said=say(1))
    again = submit_review(caller=by(mate), review=review, said=say(1))
    assert (first.labels, Label.objects.count()) == (again.labels, 1)
    with pytest.raises(Conflict, match="undo that first"):
        submit_review(caller=by(mate), review=review, said=say(0))


def test_after_the_reservation_ran_out_it_is_taken_while_there_is_room(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1)
    late = take(queue, mate)
    run_out(late)
    assert release_run_out(queue) == 1
    assert QueueItem.objects.get().n_held == 0
    assert submit_review(caller=by(mate), review=late, said=say(1)).state == "submitted"


def test_after_somebody_else_was_given_the_place_it_says_so(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1)
    late = take(queue, mate)
    run_out(late)
    give(queue, second, -1)
    with pytest.raises(Conflict, match=r"ran out .* still in the form"):
        submit_review(caller=by(mate), review=late, said=say(1))
    assert Label.objects.get().author == second
    with pytest.raises(Conflict, match="ran out"):
        undo_review(caller=by(mate), review=late)


def test_who_is_here_keeps_the_place(make_queue: MakeQueue, rows: list[Trajectory], mate: User) -> None:
    queue = make_queue(rows[0])
    review = take(queue, mate)
    run_out(review)
    assert take(queue, mate).pk == review.pk
    assert release_everywhere() == 0
    run_out(review)
    assert release_everywhere() == 1
    assert Review.objects.get().state == ReviewState.LAPSED
    assert take(queue, mate).pk != review.pk  # it is offered again


def test_a_skipped_item_is_for_others_and_one_put_back_comes_last(
    queue: ReviewQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    skipped = take(queue, mate)
    skip_review(caller=by(mate), review=skipped, reason="I know them")
    put_back = take(queue, mate)
    put_back_review(caller=by(mate), review=put_back)
    put_back_review(caller=by(mate), review=put_back)
    third = take(queue, mate)
    assert len({skipped.item_id, put_back.item_id, third.item_id}) == 3
    submit_review(caller=by(mate), review=third, said=say(1))
    assert take(queue, mate).item_id == put_back.item_id
    skip_review(caller=by(mate), review=take(queue, mate))
    assert take_review(caller=by(mate), queue=queue) is None
    assert take(queue, second).item_id == skipped.item_id
    assert set(QueueItem.objects.values_list("n_held", flat=True)) == {0, 1}


def test_an_undo_gives_the_item_back_with_its_answers(queue: ReviewQueue, mate: User) -> None:
    given = give(queue, mate, 1)
    undone = undo_review(caller=by(mate), review=given)
    assert (undone.state, undone.answers["reward"]["value"]) == ("held", 1)
    item = QueueItem.objects.select_related("trajectory").get(pk=given.item_id)
    assert (item.n_held, item.n_done, item.trajectory.reward) == (1, 0, None)
    assert take(queue, mate).pk == given.pk
    submit_review(caller=by(mate), review=undone, said=say(-1))
    item.trajectory.refresh_from_db()
    assert item.trajectory.reward == -1


def test_a_stale_undo_is_refused(queue: ReviewQueue, mate: User) -> None:
    given = give(queue, mate)
    add_label(caller=by(mate), trajectory=given.item.trajectory, value=0)
    with pytest.raises(Conflict, match="changed what this review said since"):
        undo_review(caller=by(mate), review=given)
    assert Review.objects.get(pk=given.pk).state == ReviewState.SUBMITTED


def test_a_skip_is_undone_while_there_is_room(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1)
    skipped = skip_review(caller=by(mate), review=take(queue, mate))
    assert undo_review(caller=by(mate), review=skipped).state == "held"
    skip_review(caller=by(mate), review=skipped)
    give(queue, second)
    with pytest.raises(Conflict, match="others have given"):
        undo_review(caller=by(mate), review=skipped)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "not answered yet"),
        ({"reward": {"value": 2}}, "a number from -1 to 1"),
        ({"reward": {"value": 1}, "mood": {"value": 1}}, "has no field 'mood'"),
        ({"reward": 1}, "an answer is"),
        ({"reward": {"value": 1}, "comment": {"value": 1}}, "a text and no value"),
        ({"reward": {"value": 1}, "comment": {"text": "x" * 20_001}}, "20000 characters"),
        ({"reward": {"value": 1}, "comment": {"text": "\x00"}}, "cannot be stored"),
    ],
)
def test_bad_answers_are_refused_and_nothing_is_lost(
    queue: ReviewQueue, mate: User, answers: dict[str, Any], words: str
) -> None:
    review = take(queue, mate)
    with pytest.raises(InvalidInput, match=words):
        submit_review(caller=by(mate), review=review, said=Submission(answers=answers))
    assert (Review.objects.get().state, Label.objects.count()) == ("held", 0)


def test_who_may_review(
    queue: ReviewQueue, mate: User, second: User, viewer: User, stranger: User, manage_key: ApiKey, trainer: User
) -> None:
    with pytest.raises(Forbidden, match="role reviewer"):
        take_review(caller=by(viewer), queue=queue)
    with pytest.raises(NotFound):
        take_review(caller=by(stranger), queue=queue)
    with pytest.raises(Forbidden, match="a person's"):
        take_review(caller=Caller(key=manage_key), queue=queue)
    review = take(queue, mate)
    for user in (second, stranger):
        with pytest.raises(NotFound, match="you have no review"):
            find_review(caller=by(user), review_id=review.pk)
    change_queue(caller=by(trainer), queue=queue, settings={"reviewers": [second.email]})
    with pytest.raises(Forbidden, match="other reviewers"):
        take_review(caller=by(mate), queue=queue)
    assert take(queue, second)


def test_a_paused_queue_gives_nothing_out_and_takes_what_is_open(
    queue: ReviewQueue, mate: User, second: User, trainer: User
) -> None:
    review = take(queue, mate)
    queue = set_state(caller=by(trainer), queue=queue, state="paused")
    with pytest.raises(Conflict, match="paused"):
        take_review(caller=by(second), queue=queue)
    assert submit_review(caller=by(mate), review=review, said=say(1)).state == "submitted"


def test_a_deleted_trajectory_is_not_given_out(queue: ReviewQueue, mate: User) -> None:
    review = take(queue, mate)
    Trajectory.objects.update(deleted_at=timezone.now())
    with pytest.raises(Conflict, match="deleted"):
        submit_review(caller=by(mate), review=review, said=say(1))
    skip_review(caller=by(mate), review=review)
    assert take_review(caller=by(mate), queue=queue) is None


def test_events_are_numbered_without_gaps(queue: ReviewQueue, mate: User) -> None:
    undo_review(caller=by(mate), review=give(queue, mate))
    numbers = list(QueueEvent.objects.filter(queue=queue).order_by("number").values_list("number", "kind"))
    assert numbers == list(enumerate(["created", "added", "taken", "submitted", "undone"], start=1))


def test_a_pair_is_compared(make_queue: MakeQueue, add: Add, mate: User) -> None:
    one, other = add(group="g"), add(group="g")
    queue = make_queue(one, other, add(group="alone"), mode="pairs")
    review = take(queue, mate)
    assert {review.item.trajectory_id, review.item.other_id} == {one.pk, other.pk}
    for bad in ({}, {"better": {"value": "neither"}}, {"reward": {"value": 1}}):
        with pytest.raises(InvalidInput):
            submit_review(caller=by(mate), review=review, said=Submission(answers=bad))
    said = Submission(answers={"better": {"value": other.pk, "text": "shorter"}})
    given = submit_review(caller=by(mate), review=review, said=said)
    preference = other.preferences.get()
    assert (preference.pk, preference.rejected_trajectory, preference.text) == (given.labels[0], one, "shorter")
    undo_review(caller=by(mate), review=given)
    tie = Submission(answers={"better": {"value": "tie"}})
    submit_review(caller=by(mate), review=given, said=tie)
    assert Preference.objects.standing().get().is_tie


class TestAtOnce:
    """Several people at the same moment, each with a connection of their own."""

    pytestmark = pytest.mark.django_db(transaction=True)

    def test_one_place_is_given_to_one_person(
        self, make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
    ) -> None:
        queue = make_queue(rows[0], n_reviews=1)
        taken = run_at_once(*(lambda who=who: take_review(caller=by(who), queue=queue) for who in (mate, second)))
        assert sorted(review is None for review in taken) == [False, True]
        assert QueueItem.objects.get().n_held == 1

    def test_two_windows_of_one_person_open_one_item(self, queue: ReviewQueue, mate: User) -> None:
        one, other = run_at_once(*(lambda: take_review(caller=by(mate), queue=queue) for _ in range(2)))
        assert one.pk == other.pk
        assert Review.objects.held().count() == 1

    def test_two_who_submit_at_once_are_both_counted(
        self, make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
    ) -> None:
        queue = make_queue(rows[0], n_reviews=2)
        mine, theirs = take(queue, mate), take(queue, second)
        run_at_once(
            lambda: submit_review(caller=by(mate), review=mine, said=say(1)),
            lambda: submit_review(caller=by(second), review=theirs, said=say(-1)),
        )
        item = QueueItem.objects.select_related("trajectory").get()
        assert (item.n_done, item.state, item.trajectory.reward) == (2, ItemState.DISPUTED, 0)

    def test_of_two_who_compete_for_the_last_place_one_is_told(
        self, make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
    ) -> None:
        queue = make_queue(rows[0], n_reviews=1)
        late = take(queue, mate)
        run_out(late)
        fresh = take(queue, second)
        answers = run_at_once(
            lambda: submit_review(caller=by(mate), review=late, said=say(1)),
            lambda: submit_review(caller=by(second), review=fresh, said=say(-1)),
        )
        assert [isinstance(answer, Conflict) for answer in answers] == [True, False]
        assert Label.objects.get().author_id == second.pk

    def test_a_submission_sent_twice_counts_once(self, queue: ReviewQueue, mate: User) -> None:
        review = take(queue, mate)
        run_at_once(*(lambda: submit_review(caller=by(mate), review=review, said=say(1)) for _ in range(3)))
        assert (Label.objects.count(), QueueItem.objects.get(pk=review.item_id).n_done) == (1, 1)

    def test_adding_twice_at_once_adds_once(self, make_queue: MakeQueue, rows: list[Trajectory], mate: User) -> None:
        queue = make_queue()
        ids = [row.pk for row in rows]
        run_at_once(*(lambda: add_trajectories(caller=by(mate), queue=queue, ids=ids) for _ in range(2)))
        assert QueueItem.objects.count() == 3


@pytest.mark.parametrize("how", ["left the team", "only looks now", "not named any more", "has no account"])
def test_who_may_not_review_any_more_holds_no_place(
    queue: ReviewQueue, mate: User, second: User, trainer: User, how: str
) -> None:
    held = take(queue, mate)
    QueueItem.objects.exclude(pk=held.item_id).delete()
    QueueItem.objects.update(n_wanted=1)
    assert take_review(caller=by(second), queue=queue) is None
    match how:
        case "left the team":
            Membership.objects.filter(user=mate).delete()
        case "only looks now":
            Membership.objects.filter(user=mate).update(role=Role.VIEWER)
        case "not named any more":
            change_queue(caller=by(trainer), queue=queue, settings={"reviewers": [second.email]})
        case _:
            mate.delete()
    assert take(queue, second).item_id == held.item_id
    assert Review.objects.get(pk=held.pk).state == "lapsed"
    assert release_everywhere() == 0


def test_an_undo_brings_back_what_its_author_had_said_before(queue: ReviewQueue, mate: User) -> None:
    row = take(queue, mate).item.trajectory
    add_label(caller=by(mate), trajectory=row, value=-0.5, text="dull")
    for _ in range(2):
        given = submit_review(caller=by(mate), review=take(queue, mate), said=say(1, "changed my mind"))
        undo_review(caller=by(mate), review=given)
        row.refresh_from_db()
        standing = Label.objects.standing().get(trajectory=row)
        assert (row.reward, standing.value, standing.text, standing.author) == (-0.5, -0.5, "dull", mate)
    assert submit_review(caller=by(mate), review=take(queue, mate), said=say(1)).state == "submitted"
    row.refresh_from_db()
    assert row.reward == 1


def test_an_undo_brings_nothing_back_that_was_taken_back(queue: ReviewQueue, mate: User) -> None:
    row = take(queue, mate).item.trajectory
    take_back_label(caller=by(mate), label=add_label(caller=by(mate), trajectory=row, value=-0.5))
    undo_review(caller=by(mate), review=give(queue, mate, 1))
    assert not Label.objects.standing().exists()


def test_the_undo_of_a_pair_brings_back_the_comparison_before(make_queue: MakeQueue, add: Add, mate: User) -> None:
    one, other = add(group="g"), add(group="g")
    queue = make_queue(one, other, mode="pairs")
    first, second = Side(trajectory=one), Side(trajectory=other)
    before = add_comparison(caller=by(mate), chosen=first, rejected=second, text="as I said")
    said = Submission(answers={"better": {"value": other.pk}})
    given = submit_review(caller=by(mate), review=take(queue, mate), said=said)
    assert Preference.objects.standing().get().trajectory == other
    undo_review(caller=by(mate), review=given)
    again = Preference.objects.standing().get()
    assert (again.trajectory, again.rejected_trajectory, again.text, again.author) == (one, other, "as I said", mate)
    assert (again.pk != before.pk, again.created_at > before.created_at) == (True, True)
