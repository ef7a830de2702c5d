"""Two people press at the same moment, whatever they press: one is first, the other is told, and all counts agree."""

from collections.abc import Callable
from functools import partial

import pytest
from django.utils import timezone

from apps.accounts.models import Membership, Role, Team, User
from apps.accounts.services import remove_member
from apps.core.errors import Conflict, Forbidden, NotFound, ServiceError
from apps.feedback.models import Label, Source
from apps.feedback.queues.deciding import ask_again, decide_item, take_back_decision
from apps.feedback.queues.models import ItemState, QueueItem, Review, ReviewQueue, ReviewState
from apps.feedback.queues.results import count_left_for
from apps.feedback.queues.services import set_state
from apps.feedback.queues.working import (
    Submission,
    put_back_review,
    release_everywhere,
    skip_review,
    submit_review,
    take_review,
    undo_review,
)
from apps.feedback.rewards import score_labels
from apps.feedback.services import add_label, take_back_label
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by, run_at_once
from tests.factories.accounts import MembershipFactory

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 4  # each has its own luck
MakeItem = Callable[[], ReviewQueue]


@pytest.fixture
def make_item(make_queue: MakeQueue, add: Add) -> MakeItem:
    """Return a function that makes a queue of one item, two reviews wanted, open to all eyes."""
    numbers = iter(range(100))
    return lambda: make_queue(add(), name=f"queue {next(numbers)}", is_blind=False)


def take(queue: ReviewQueue, user: User) -> Review:
    review = take_review(caller=by(user), queue=queue)
    assert review is not None
    return review


def say(value: float) -> Submission:
    return Submission(answers={"reward": {"value": value}})


def give(queue: ReviewQueue, user: User, value: float) -> Review:
    return submit_review(caller=by(user), review=take(queue, user), said=say(value))


def dispute(queue: ReviewQueue, mate: User, second: User) -> tuple[QueueItem, Review]:
    """Two reviews that lie apart; return the item and the mate's."""
    mine = give(queue, mate, 1)
    give(queue, second, -1)
    return QueueItem.objects.select_related("queue__project__team").get(pk=mine.item_id), mine


def check_all_counts() -> None:
    """Items count their reviews, reviews that were given stand as labels, and rewards are what the labels say."""
    for item in QueueItem.objects.select_related("trajectory"):
        reviews = Review.objects.filter(item=item)
        assert item.n_held == reviews.filter(state=ReviewState.HELD).count()
        given = reviews.filter(state=ReviewState.SUBMITTED)
        assert item.n_done == given.count()
        assert (item.state == ItemState.OPEN) == (item.n_done < item.n_wanted and item.decision is None)
        standing = Label.objects.standing().filter(trajectory=item.trajectory, source=Source.HUMAN)
        if item.decision is None:
            assert {label for review in given for label in review.labels} == set(standing.values_list("pk", flat=True))
        else:
            assert [label.author_id for label in standing] == [item.decided_by_id]
        assert item.trajectory.reward == score_labels(trajectory=item.trajectory).reward


def one_of(answers: list[object], *errors: type[ServiceError]) -> None:
    """One of two did it, or both; who did not was told in one of these ways."""
    failed = [answer for answer in answers if isinstance(answer, ServiceError)]
    assert len(failed) < len(answers)
    assert all(isinstance(error, errors) for error in failed), failed


def test_a_review_is_submitted_and_its_author_taken_out_of_the_team(
    make_item: MakeItem, team: Team, owner: User
) -> None:
    for number in range(ROUNDS):
        leaver = MembershipFactory.create(team=team, role=Role.REVIEWER, user__email=f"leaver{number}@example.org").user
        queue = make_item()
        review, membership = take(queue, leaver), Membership.objects.get(user=leaver)
        answers = run_at_once(
            partial(submit_review, caller=by(leaver), review=review, said=say(1)),
            partial(remove_member, membership, actor=owner.email),
        )
        one_of(answers, Forbidden, NotFound)
        assert not isinstance(answers[1], ServiceError)
        release_everywhere()
        check_all_counts()
        assert Review.objects.get(pk=review.pk).state in {"submitted", "lapsed"}


def test_an_undo_and_a_decision(make_item: MakeItem, mate: User, second: User, trainer: User) -> None:
    for _ in range(ROUNDS):
        item, mine = dispute(make_item(), mate, second)
        answers = run_at_once(
            partial(undo_review, caller=by(mate), review=mine),
            partial(decide_item, caller=by(trainer), item=item, answers={"reward": {"value": 0.5}}),
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 1
        check_all_counts()


def test_an_undo_and_a_decision_taken_back(make_item: MakeItem, mate: User, second: User, trainer: User) -> None:
    """Of a decided item a review cannot be undone; after the decision has gone it can."""
    for _ in range(2 * ROUNDS):
        item, mine = dispute(make_item(), mate, second)
        decided = decide_item(caller=by(trainer), item=item, answers={"reward": {"value": 0.5}})
        answers = run_at_once(
            partial(undo_review, caller=by(mate), review=mine),
            partial(take_back_decision, caller=by(trainer), item=decided),
        )
        one_of(answers, Conflict)
        assert not isinstance(answers[1], ServiceError)
        check_all_counts()


def test_all_places_of_an_item_are_given_to_those_who_come_at_once(make_queue: MakeQueue, add: Add, team: Team) -> None:
    for number in range(ROUNDS):
        people = [
            MembershipFactory.create(team=team, role=Role.REVIEWER, user__email=f"{place}-{number}@example.org").user
            for place in range(8)
        ]
        queue = make_queue(add(), name=f"of six {number}", n_reviews=6)
        answers = run_at_once(*(partial(take_review, caller=by(person), queue=queue) for person in people))
        assert sum(answer is not None for answer in answers) == 6
        assert QueueItem.objects.get(queue=queue).n_held == 6


def test_two_decisions(make_item: MakeItem, mate: User, second: User, trainer: User, owner: User) -> None:
    for _ in range(ROUNDS):
        item, _mine = dispute(make_item(), mate, second)
        answers = run_at_once(
            *(
                partial(decide_item, caller=by(who), item=item, answers={"reward": {"value": value}})
                for who, value in ((trainer, 0.5), (owner, -0.5))
            )
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 1
        check_all_counts()


def test_a_decision_and_a_wish_for_another_opinion(
    make_item: MakeItem, mate: User, second: User, trainer: User
) -> None:
    for _ in range(ROUNDS):
        item, _mine = dispute(make_item(), mate, second)
        answers = run_at_once(
            partial(ask_again, caller=by(mate), item=item),
            partial(decide_item, caller=by(trainer), item=item, answers={"reward": {"value": 0}}),
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 1
        check_all_counts()


@pytest.mark.parametrize("give_up", [skip_review, put_back_review])
def test_one_person_submits_in_one_window_and_gives_up_in_another(
    make_item: MakeItem, mate: User, give_up: Callable[..., Review]
) -> None:
    for _ in range(ROUNDS):
        review = take(make_item(), mate)
        answers = run_at_once(
            partial(submit_review, caller=by(mate), review=review, said=say(1)),
            partial(give_up, caller=by(mate), review=review),
        )
        one_of(answers, Conflict)
        check_all_counts()


def test_a_review_is_submitted_while_its_trajectory_is_deleted(make_item: MakeItem, mate: User) -> None:
    for _ in range(ROUNDS):
        review = take(make_item(), mate)
        rows = Trajectory.objects.filter(pk=review.item.trajectory_id)
        answers = run_at_once(
            partial(submit_review, caller=by(mate), review=review, said=say(1)),
            partial(rows.update, deleted_at=timezone.now()),
        )
        one_of(answers, Conflict)
        check_all_counts()


def test_an_undo_and_a_change_of_what_was_said(make_item: MakeItem, mate: User) -> None:
    for _ in range(ROUNDS):
        review = give(make_item(), mate, 1)
        trajectory = Trajectory.objects.get(pk=review.item.trajectory_id)
        run_at_once(
            partial(undo_review, caller=by(mate), review=review),
            partial(add_label, caller=by(mate), trajectory=trajectory, value=-1),
        )
        trajectory.refresh_from_db()
        assert trajectory.reward == score_labels(trajectory=trajectory).reward == -1
        assert Label.objects.standing().filter(trajectory=trajectory).count() == 1


def test_an_undo_and_a_trainer_who_takes_the_label_back(make_item: MakeItem, mate: User, trainer: User) -> None:
    for _ in range(ROUNDS):
        review = give(make_item(), mate, 1)
        label = Label.objects.select_related("trajectory__project__team").get(pk=review.labels[0])
        answers = run_at_once(
            partial(undo_review, caller=by(mate), review=review),
            partial(take_back_label, caller=by(trainer), label=label),
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 1
        assert not Label.objects.standing().filter(trajectory=label.trajectory).exists()
        assert Trajectory.objects.get(pk=label.trajectory_id).reward is None


def test_an_item_is_taken_while_the_queue_is_paused(make_item: MakeItem, mate: User, trainer: User) -> None:
    for _ in range(ROUNDS):
        queue = make_item()
        answers = run_at_once(
            partial(take_review, caller=by(mate), queue=queue),
            partial(set_state, caller=by(trainer), queue=queue, state="paused"),
        )
        one_of(answers, Conflict)
        check_all_counts()


def test_what_is_left_is_counted_while_an_item_is_put_back_and_taken_again(make_item: MakeItem, mate: User) -> None:
    queue = make_item()

    def go_round() -> None:
        for _ in range(40):
            put_back_review(caller=by(mate), review=take(queue, mate))

    _, counted = run_at_once(go_round, lambda: {count_left_for(queue, mate) for _ in range(200)})
    assert counted == {1}


def test_an_old_window_and_a_new_one_have_one_item_in_hand(make_item: MakeItem, mate: User) -> None:
    for go_on in (
        partial(undo_review, caller=by(mate)),
        partial(submit_review, caller=by(mate), said=say(1)),
        partial(skip_review, caller=by(mate)),
    ):
        queue = make_item()
        old = put_back_review(caller=by(mate), review=take(queue, mate))
        new = take(queue, mate)
        assert new.item_id == old.item_id
        with pytest.raises(Conflict, match="another window"):
            go_on(review=old)
        check_all_counts()
        assert Review.objects.held().get(queue=queue).pk == new.pk
