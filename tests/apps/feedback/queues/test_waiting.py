"""Whom open items wait for, and how those go on that wait for nobody."""

import pytest

from apps.accounts.models import Membership, Role, Team, User
from apps.core.errors import Conflict, Forbidden
from apps.feedback.queues.models import QueueItem, ReviewQueue, ReviewState
from apps.feedback.queues.results import count_left_for
from apps.feedback.queues.services import change_queue
from apps.feedback.queues.waiting import (
    ask_all_again,
    ask_me_again,
    close_stuck,
    count_many_stuck,
    find_stuck,
    list_askable,
    list_people,
    read_waiting,
)
from apps.feedback.queues.working import put_back_review, skip_review, submit_review, take_review
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import MakeQueue, by
from tests.apps.feedback.queues.test_working import give, run_out, say, take
from tests.factories.accounts import MembershipFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def two(make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User) -> ReviewQueue:
    """Three items, two reviews each, and two people who may give them."""
    return make_queue(*rows, reviewers=[mate.email, second.email])


def skip(queue: ReviewQueue, user: User) -> QueueItem:
    return skip_review(caller=by(user), review=take(queue, user)).item


def count(queue: ReviewQueue) -> tuple[int, ...]:
    found = read_waiting(queue)
    assert found.stuck == find_stuck(queue).count() == count_many_stuck([queue])[queue.pk]
    return found.at_hand, found.free, found.stuck, found.skipped, found.reviewed


def test_open_items_are_counted_by_what_they_wait_for(two: ReviewQueue, mate: User, second: User) -> None:
    assert count(two) == (0, 3, 0, 0, 0)
    held = take(two, mate)
    assert count(two) == (1, 2, 0, 0, 0)
    submit_review(caller=by(mate), review=held, said=say(1))
    assert count(two) == (0, 3, 0, 0, 0)
    assert skip(two, second).pk == held.item_id
    assert count(two) == (0, 2, 1, 1, 1)  # one has reviewed it, the other has skipped it
    assert {part.name: part.left for part in read_waiting(two).people} == {mate.email: 2, second.email: 2}
    assert skip(two, mate).pk == skip(two, second).pk
    assert count(two) == (0, 1, 2, 2, 1)  # both have skipped this one
    put_back_review(caller=by(mate), review=take(two, mate))
    run_out(take(two, second))
    assert take_review(caller=by(mate), queue=two) is not None
    assert count(two) == (1, 0, 2, 2, 1)


def test_many_queues_are_looked_at_at_once(
    two: ReviewQueue, make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    others = make_queue(*rows, name="others", reviewers=[second.email])
    everybodys = make_queue(*rows, name="everybodys")
    skip(two, mate)
    skip(others, second)
    skip(everybodys, mate)
    assert count_many_stuck([two, others, everybodys]) == {two.pk: 0, others.pk: 1, everybodys.pk: 0}
    skip(two, second)
    assert count_many_stuck([two, everybodys]) == {two.pk: 1, everybodys.pk: 0}


def test_who_may_still_be_given_an_item(two: ReviewQueue, mate: User, second: User, owner: User) -> None:
    item = give(two, mate).item
    assert list_askable(item) == [second]
    put_back_review(caller=by(second), review=take(two, second))
    assert list_askable(item) == [second]
    change_queue(caller=by(owner), queue=two, settings={"reviewers": []})
    assert [user.email for user in list_askable(item)] == ["owner@example.org", second.email, "trainer@example.org"]


def test_who_left_the_team_is_nobody_to_wait_for(two: ReviewQueue, mate: User, second: User, viewer: User) -> None:
    item = give(two, mate).item
    two.reviewers.add(viewer)
    assert list_people(two) == [mate, second]
    Membership.objects.filter(user=second).delete()
    assert (list_askable(item), count(two)) == ([], (0, 2, 1, 0, 1))
    Membership.objects.filter(user=mate).delete()
    assert count(two) == (0, 0, 3, 0, 1)
    assert read_waiting(two).people == []


def test_one_more_reviewer_is_somebody_to_wait_for(
    two: ReviewQueue, mate: User, second: User, team: Team, trainer: User
) -> None:
    give(two, mate)
    skip(two, second)
    third = MembershipFactory.create(team=team, role=Role.REVIEWER, user__email="third@example.org").user
    assert count(two)[2] == 1
    people = [mate.email, second.email, third.email]
    change_queue(caller=by(trainer), queue=two, settings={"reviewers": people})
    assert count(two)[2] == 0


def test_nothing_is_left_for_whom_a_queue_does_not_name(
    two: ReviewQueue, mate: User, trainer: User, make_queue: MakeQueue, rows: list[Trajectory]
) -> None:
    assert (count_left_for(two, trainer), count_left_for(two, mate)) == (0, 3)
    assert count_left_for(make_queue(*rows, name="for all"), trainer) == 3


def test_who_skipped_is_asked_again(two: ReviewQueue, mate: User, second: User, trainer: User) -> None:
    stuck = give(two, mate).item
    skip(two, second)
    other = skip(two, second)  # the mate may still be asked: it is no business of the trainer's
    assert ask_all_again(caller=by(trainer), queue=two) == 1
    assert stuck.reviews.get(reviewer=second).state == ReviewState.RETURNED
    assert other.reviews.get(reviewer=second).state == ReviewState.SKIPPED
    assert take(two, second).item_id == stuck.pk
    with pytest.raises(Conflict):
        ask_all_again(caller=by(trainer), queue=two)
    with pytest.raises(Forbidden):
        ask_all_again(caller=by(mate), queue=two)


def test_one_has_what_one_skipped_again(two: ReviewQueue, mate: User, second: User, viewer: User) -> None:
    skipped = {skip(two, mate).pk for _ in range(3)}
    assert take_review(caller=by(mate), queue=two) is None
    assert ask_me_again(caller=by(mate), queue=two) == 3
    assert {give(two, mate).item_id for _ in range(3)} == skipped
    with pytest.raises(Conflict):
        ask_me_again(caller=by(second), queue=two)
    with pytest.raises(Forbidden):
        ask_me_again(caller=by(viewer), queue=two)


def test_what_others_gave_all_reviews_of_is_not_offered_again(two: ReviewQueue, mate: User, second: User) -> None:
    QueueItem.objects.update(n_wanted=1)
    item = skip(two, mate)
    assert give(two, second).item_id == item.pk
    with pytest.raises(Conflict):
        ask_me_again(caller=by(mate), queue=two)


def test_stuck_items_are_closed_with_the_reviews_they_have(
    two: ReviewQueue, mate: User, second: User, trainer: User
) -> None:
    reviewed = give(two, mate).item
    skip(two, second)
    assert skip(two, mate).pk == skip(two, second).pk
    assert count(two) == (0, 1, 2, 2, 1)
    with pytest.raises(Forbidden):
        close_stuck(caller=by(mate), queue=two)
    assert close_stuck(caller=by(trainer), queue=two) == 1
    reviewed.refresh_from_db()
    assert (reviewed.state, reviewed.n_wanted) == ("done", 1)
    assert count(two) == (0, 1, 1, 1, 0)  # what nobody has reviewed has nothing to be closed with
    with pytest.raises(Conflict):
        close_stuck(caller=by(trainer), queue=two)


def test_one_that_is_closed_with_reviews_that_lie_apart_is_disputed(
    two: ReviewQueue, mate: User, second: User, trainer: User
) -> None:
    QueueItem.objects.update(n_wanted=3)
    give(two, mate, 1)
    give(two, second, -1)
    assert close_stuck(caller=by(trainer), queue=two) == 1
    assert QueueItem.objects.filter(state="disputed").count() == 1
