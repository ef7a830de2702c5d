"""Agreement and disagreement: a further opinion, a decision, what the results say."""

from typing import Any

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput
from apps.feedback.models import Label
from apps.feedback.queues.deciding import ask_again, decide_item, find_disputed, take_back_decision
from apps.feedback.queues.models import QueueEvent, QueueItem, Review, ReviewQueue
from apps.feedback.queues.results import (
    count_items,
    count_left_for,
    find_seen,
    read_agreement,
    read_progress,
    read_reviews,
)
from apps.feedback.queues.working import Submission, submit_review, take_review, undo_review
from apps.feedback.schemas import add_schema
from apps.feedback.score_schema import Choice, FieldKind, FieldSpec
from apps.feedback.services import add_label
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by
from tests.apps.feedback.queues.test_working import give, say, take

pytestmark = pytest.mark.django_db

SCALE = FieldSpec(name="clarity", kind=FieldKind.SCALE, low=1, high=5)
MOOD = FieldSpec(name="mood", kind=FieldKind.CHOICE, choices=(Choice(name="good"), Choice(name="bad")))
WORDS = FieldSpec(name="why", kind=FieldKind.TEXT)


@pytest.mark.parametrize(
    ("one", "other", "disputed"),
    [
        ({"clarity": 4}, {"clarity": 5}, []),
        ({"clarity": 3}, {"clarity": 5}, ["clarity"]),
        ({"clarity": 3, "mood": "good"}, {"clarity": 3, "mood": "bad"}, ["mood"]),
        ({"why": None}, {"why": None}, []),
        ({"clarity": 1}, {"mood": "bad"}, []),
        ({"better": "a"}, {"better": "tie"}, ["better"]),
        ({"clarity": "good"}, {"clarity": 5}, ["clarity"]),  # the first was said when clarity was a choice
    ],
)
def test_what_lies_apart_is_disputed(one: dict[str, Any], other: dict[str, Any], disputed: list[str]) -> None:
    reviews = [{name: {"value": value, "text": name} for name, value in said.items()} for said in (one, other)]
    assert find_disputed(reviews, specs=[SCALE, MOOD, WORDS], tolerance=0.25) == disputed


def test_reviews_from_before_and_after_a_field_was_of_another_kind(
    make_queue: MakeQueue, add: Add, project: Project, trainer: User, mate: User, second: User
) -> None:
    def ask(*fields: FieldSpec) -> None:
        definition = {"fields": [field.model_dump(mode="json") for field in fields]}
        add_schema(caller=by(trainer), project=project, definition=definition)

    def answer(user: User, value: object) -> None:
        said = Submission(answers={"clarity": {"value": value}})
        submit_review(caller=by(user), review=take(queue, user), said=said)

    ask(MOOD.model_copy(update={"name": "clarity"}))
    queue = make_queue(add(), field_names=["clarity"])
    answer(mate, "good")
    ask(SCALE)
    answer(second, 4)
    assert QueueItem.objects.get().disputed == ["clarity"]
    assert [field.n_items for field in read_agreement(queue)] == [0]
    ask()
    with pytest.raises(Conflict, match="none of the fields"):
        decide_item(caller=by(trainer), item=QueueItem.objects.get(), answers={"clarity": {"value": 4}})


@pytest.fixture
def disputed(make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User) -> QueueItem:
    queue = make_queue(rows[0])
    give(queue, mate, 1)
    give(queue, second, -1)
    return QueueItem.objects.select_related("queue__project__team", "trajectory", "other").get()


def test_who_decides_has_the_last_word(disputed: QueueItem, trainer: User) -> None:
    assert (disputed.state, disputed.disputed, disputed.trajectory.reward) == ("disputed", ["reward"], 0)
    for bad in ({}, {"reward": {"value": 7}}):
        with pytest.raises(InvalidInput):
            decide_item(caller=by(trainer), item=disputed, answers=bad)
    item = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 0.5, "text": "both a bit"}})
    assert (item.state, item.decided_by) == ("decided", trainer)
    disputed.trajectory.refresh_from_db()
    assert disputed.trajectory.reward == 0.5
    assert Label.objects.standing().get().author == trainer
    assert Review.objects.filter(state="submitted").count() == 2
    with pytest.raises(Conflict, match="the item is decided"):
        decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 1}})


def test_after_a_decision_an_undo_is_too_late(disputed: QueueItem, trainer: User, mate: User) -> None:
    decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 1}})
    review = Review.objects.select_related("queue__project__team", "item").get(reviewer=mate)
    with pytest.raises(Conflict, match="somebody has decided"):
        undo_review(caller=by(mate), review=review)
    with pytest.raises(Conflict, match="decided"):
        ask_again(caller=by(mate), item=disputed)


def test_a_decision_is_taken_back_and_reviewers_have_their_word_again(
    disputed: QueueItem, trainer: User, mate: User, second: User
) -> None:
    add_label(caller=by(second), trajectory=disputed.trajectory, value=-0.5, text="on second thoughts")
    item = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 1}})
    item = take_back_decision(caller=by(trainer), item=item)
    assert (item.state, item.disputed, item.decision, item.decided_by) == ("disputed", ["reward"], None, None)
    standing = Label.objects.standing().order_by("value").values_list("author", "value", "text", "source")
    assert list(standing) == [(second.pk, -0.5, "on second thoughts", "human"), (mate.pk, 1, "", "human")]
    disputed.trajectory.refresh_from_db()
    assert disputed.trajectory.reward == 0.25
    with pytest.raises(Conflict, match="no decision to take back: the item is disputed"):
        take_back_decision(caller=by(trainer), item=item)
    ReviewQueue.objects.update(is_blind=False)  # in a blind one an undo is too late when others have judged it
    review = Review.objects.select_related("queue__project__team", "item").get(reviewer=mate)
    undo_review(caller=by(mate), review=review)  # what a reviewer said again is theirs to undo
    assert Label.objects.standing().get().author == second


def test_a_decision_can_be_made_and_taken_back_again_and_again(disputed: QueueItem, trainer: User) -> None:
    for value in (1, 0, 1):
        item = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": value}})
        assert Label.objects.standing().get().author == trainer
        assert take_back_decision(caller=by(trainer), item=item).state == "disputed"
        assert set(Label.objects.standing().values_list("value", flat=True)) == {-1, 1}
    assert QueueEvent.objects.filter(kind="decision undone").count() == 3


def test_who_spoke_again_after_a_decision_keeps_that(disputed: QueueItem, trainer: User, mate: User) -> None:
    item = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 0}})
    add_label(caller=by(mate), trajectory=disputed.trajectory, value=0.75)
    take_back_decision(caller=by(trainer), item=item)
    assert set(Label.objects.standing().values_list("value", flat=True)) == {-1, 0.75}


def test_a_decision_that_was_changed_since_is_not_taken_back(disputed: QueueItem, trainer: User, mate: User) -> None:
    item = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": 0}})
    with pytest.raises(Forbidden, match="role trainer"):
        take_back_decision(caller=by(mate), item=item)
    add_label(caller=by(trainer), trajectory=disputed.trajectory, value=0.75)
    with pytest.raises(Conflict, match="too late to take it back"):
        take_back_decision(caller=by(trainer), item=item)
    assert Label.objects.standing().get().value == 0.75
    QueueItem.objects.update(decision_labels=[])  # from before they were noted
    with pytest.raises(Conflict, match="did not note"):
        take_back_decision(caller=by(trainer), item=item)


def test_what_a_reviewer_changed_since_is_decided_too(disputed: QueueItem, trainer: User, mate: User) -> None:
    add_label(caller=by(mate), trajectory=disputed.trajectory, value=0.9)
    decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": -0.5}})
    disputed.trajectory.refresh_from_db()
    assert disputed.trajectory.reward == -0.5


def test_who_may_decide_and_ask_again(
    disputed: QueueItem, mate: User, second: User, viewer: User, manage_key: ApiKey
) -> None:
    with pytest.raises(Forbidden, match="role trainer"):
        decide_item(caller=by(mate), item=disputed, answers={"reward": {"value": 1}})
    with pytest.raises(Forbidden, match="a person's"):
        decide_item(caller=Caller(key=manage_key), item=disputed, answers={"reward": {"value": 1}})
    with pytest.raises(Forbidden):
        ask_again(caller=by(viewer), item=disputed)
    assert ask_again(caller=by(mate), item=disputed).n_wanted == 3
    QueueItem.objects.update(n_wanted=10)
    with pytest.raises(Conflict, match="10 reviews"):
        ask_again(caller=by(mate), item=disputed)


def test_only_who_has_reviewed_it_asks_again(queue: ReviewQueue, mate: User, second: User) -> None:
    item = give(queue, mate).item
    with pytest.raises(Forbidden, match="only who has reviewed"):
        ask_again(caller=by(second), item=item)


def test_a_review_can_ask_for_a_second_opinion(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1)
    said = Submission(answers={"reward": {"value": 1}}, wants_second=True)
    submit_review(caller=by(mate), review=take(queue, mate), said=said)
    assert (QueueItem.objects.get().state, QueueItem.objects.get().n_wanted) == ("open", 2)
    give(queue, second, 1)
    assert QueueItem.objects.get().state == "done"


def test_an_undo_takes_back_that_a_second_opinion_was_asked_for(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, trainer: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1)
    review = take(queue, mate)
    for wants_second, then in ((True, ("open", 2)), (False, ("done", 1))):
        said = Submission(answers={"reward": {"value": 1}}, wants_second=wants_second)
        submit_review(caller=by(mate), review=review, said=said)
        item = QueueItem.objects.get()
        assert (item.state, item.n_wanted) == then
        if wants_second:
            undo_review(caller=by(mate), review=review)
    ask_again(caller=by(trainer), item=item)
    undo_review(caller=by(mate), review=review)
    assert QueueItem.objects.get().n_wanted == 2  # what others asked for stays


def test_a_second_opinion_that_somebody_is_giving_stays_wanted(
    make_queue: MakeQueue, rows: list[Trajectory], mate: User, second: User
) -> None:
    queue = make_queue(rows[0], n_reviews=1, is_blind=False)
    review = take(queue, mate)
    submit_review(caller=by(mate), review=review, said=Submission(answers={"reward": {"value": 1}}, wants_second=True))
    take(queue, second)
    undo_review(caller=by(mate), review=review)
    item = QueueItem.objects.get()
    assert (item.n_wanted, item.n_held) == (2, 2)


def test_a_disputed_item_with_a_further_opinion_is_open_again(disputed: QueueItem, trainer: User) -> None:
    assert ask_again(caller=by(trainer), item=disputed).state == "open"
    review = take_review(caller=by(trainer), queue=disputed.queue)
    assert review is not None
    submit_review(caller=by(trainer), review=review, said=say(1))
    assert QueueItem.objects.get().state == "disputed"


def test_what_others_said_is_hidden_until_one_has_said_it(
    queue: ReviewQueue, mate: User, second: User, trainer: User, key: ApiKey
) -> None:
    given = give(queue, mate)
    item = given.item
    theirs = take(queue, second)
    assert theirs.item_id == item.pk
    assert read_reviews(item, caller=by(second)) is None
    assert [review.pk for review in read_reviews(item, caller=by(mate)) or []] == [given.pk]
    assert find_seen(item.queue, [item], caller=by(trainer))
    assert not find_seen(item.queue, [item], caller=Caller(key=key))
    submit_review(caller=by(second), review=theirs, said=say(1))
    assert find_seen(item.queue, [item], caller=by(second))


def test_a_trainer_who_reviews_an_item_is_blind_too(queue: ReviewQueue, trainer: User) -> None:
    review = take(queue, trainer)
    assert not find_seen(review.item.queue, [review.item], caller=by(trainer))
    ReviewQueue.objects.update(is_blind=False)
    review.queue.refresh_from_db()
    review.item.queue.refresh_from_db()
    assert find_seen(review.item.queue, [review.item], caller=by(trainer))


def test_results_count_people_and_agreement(queue: ReviewQueue, mate: User, second: User, trainer: User) -> None:
    for user, values in ((mate, (1, -1, 1)), (second, (1, -1, -1))):
        for value in values:
            give(queue, user, value)
    counts = count_items(queue)
    assert (counts.items, counts.done, counts.disputed, counts.reviews_left) == (3, 2, 1, 0)
    assert count_left_for(queue, trainer) == 0
    progress = read_progress(queue)
    assert [(row.name, row.submitted, row.last_day) for row in progress] == [(mate.email, 3, 3), (second.email, 3, 3)]
    [reward] = read_agreement(queue)
    # Interval: values 1 1 / -1 -1 / 1 -1. D_o = 2*4/6; D_e = 2*3*3*4/30; alpha = 1 - (4/3) / 2.4.
    assert (reward.field, reward.n_items) == ("reward", 3)
    assert reward.alpha == pytest.approx(4 / 9)
    assert set(reward.by_person) == {mate.email, second.email}


def test_a_queue_nobody_began_has_no_results(queue: ReviewQueue, mate: User) -> None:
    assert read_progress(queue) == []
    assert [(field.alpha, field.n_items) for field in read_agreement(queue)] == [(None, 0)]
    assert count_left_for(queue, mate) == 3
    assert count_items(queue).reviews_left == 6


def test_pairs_agree_by_side(make_queue: MakeQueue, add: Add, mate: User, second: User) -> None:
    queue = make_queue(*(add(group=str(number // 2)) for number in range(4)), mode="pairs")
    for user, sides in ((mate, ("trajectory", "tie")), (second, ("trajectory", "other"))):
        for side in sides:
            review = take(queue, user)
            value = "tie" if side == "tie" else getattr(review.item, side).pk
            submit_review(caller=by(user), review=review, said=Submission(answers={"better": {"value": value}}))
    assert sorted(QueueItem.objects.values_list("state", flat=True)) == ["disputed", "done"]
    [better] = read_agreement(queue)
    # first first / tie other: D_o = 2/4; n = 4, ordered pairs that differ 12 - 2 = 10; D_e = 10/12.
    assert better.alpha == pytest.approx(1 - 0.5 / (10 / 12))


def test_a_disputed_pair_is_decided(
    make_queue: MakeQueue, add: Add, mate: User, second: User, trainer: User, project: Project
) -> None:
    queue = make_queue(add(group="g"), add(group="g"), mode="pairs")
    for user, side in ((mate, "trajectory"), (second, "other")):
        review = take(queue, user)
        answers = {"better": {"value": getattr(review.item, side).pk}}
        submit_review(caller=by(user), review=review, said=Submission(answers=answers))
    item = QueueItem.objects.select_related("queue__project__team", "trajectory", "other").get()
    decide_item(caller=by(trainer), item=item, answers={"better": {"value": item.other_id}})
    assert item.other is not None
    assert [row.author for row in item.other.preferences.standing()] == [trainer]
    assert not item.trajectory.preferences.standing().exists()
    take_back_decision(caller=by(trainer), item=item)
    assert [row.author for row in item.other.preferences.standing()] == [second]
    assert [row.author for row in item.trajectory.preferences.standing()] == [mate]
    assert QueueItem.objects.get().state == "disputed"


def test_a_field_that_the_schema_dropped_is_not_asked(
    make_queue: MakeQueue, rows: list[Trajectory], project: Project, trainer: User, mate: User
) -> None:
    spec = {"name": "clarity", "kind": "scale", "low": 1, "high": 5}
    add_schema(caller=by(trainer), project=project, definition={"fields": [spec]})
    queue = make_queue(rows[0], field_names=["clarity", "reward"])
    add_schema(caller=by(trainer), project=project, definition={})
    assert give(queue, mate, 1).answers == {"reward": {"value": 1, "text": ""}}


def test_what_the_decider_had_said_before_is_said_again(disputed: QueueItem, trainer: User) -> None:
    add_label(caller=by(trainer), trajectory=disputed.trajectory, value=0.25)
    decided = decide_item(caller=by(trainer), item=disputed, answers={"reward": {"value": -0.5}})
    take_back_decision(caller=by(trainer), item=decided)
    standing = Label.objects.standing().filter(trajectory=disputed.trajectory, author=trainer)
    assert [label.value for label in standing] == [0.25]
