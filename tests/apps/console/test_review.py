"""Review queues on their pages: made, worked through, decided, all of it without JavaScript."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, Role, User
from apps.core.ids import new_id
from apps.feedback.models import Label
from apps.feedback.queues.filling import add_trajectories
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.feedback.queues.services import create_queue
from apps.feedback.queues.working import Submission, skip_review, submit_review, take_review
from apps.feedback.schemas import add_schema
from apps.trajectories.datasets.services import create_dataset
from apps.trajectories.models import Trajectory
from tests.factories.accounts import MembershipFactory

AddTrajectory = Callable[..., Trajectory]
BrowserOf = Callable[[User], Client]
FIELDS = [
    {"name": "clarity", "kind": "scale", "low": 1, "high": 5, "title": "How clear?", "help": "1 is muddy."},
    {"name": "polite", "kind": "binary"},
    {
        "name": "kind_of",
        "kind": "choice",
        "choices": [{"name": "refund"}, {"name": "other", "title": "Something else"}],
    },
]
FORM = {"v-clarity": "4.0", "v-polite": "true", "v-kind_of": '"refund"', "t-comment": "well done", "t-clarity": "short"}
PAGES = ("", "/{queue}/results", "/{queue}/items/{item}", "/{queue}/preview", "/{queue}/work", "/{queue}/work/tally")
TRAINERS_PAGES = ("/new", "/{queue}/settings")
VIEWER, REVIEWER, TRAINER = "viewer", "reviewer", "trainer"
CHANGES = (
    ("/new", TRAINER),
    ("/{queue}/settings", TRAINER),
    ("/{queue}/state", TRAINER),
    ("/{queue}/items/{item}/decide", TRAINER),
    ("/{queue}/items/{item}/take-back", TRAINER),
    ("/{queue}/items/{item}/again", REVIEWER),
    ("/{queue}/dataset", REVIEWER),
    ("/{queue}/ask-skipped", TRAINER),
    ("/{queue}/close-stuck", TRAINER),
    ("/{queue}/work/skipped", REVIEWER),
    ("/{queue}/work/{review}/submit", REVIEWER),
    ("/{queue}/work/{review}/skip", REVIEWER),
    ("/{queue}/work/{review}/undo", REVIEWER),
)
ROOT = "/p/shop/review"


@pytest.fixture
def queue(project: Project, trainer: User, add_trajectory: AddTrajectory) -> ReviewQueue:
    """Three trajectories, two reviews each, four fields."""
    caller = Caller(user=trainer)
    add_schema(caller=caller, project=project, definition={"fields": FIELDS})
    names = ["clarity", "polite", "kind_of", "comment"]
    told = {"name": "Tone", "n_reviews": 2, "field_names": names, "guideline": "Be **kind**. <b>x</b>"}
    queue = create_queue(caller=caller, project=project, settings=told)
    rows = [add_trajectory(title=f"task {number}") for number in range(3)]
    add_trajectories(caller=caller, queue=queue, ids=[row.pk for row in rows])
    return queue


@pytest.fixture
def review(queue: ReviewQueue, mate: User) -> Review:
    taken = take_review(caller=Caller(user=mate), queue=queue)
    assert taken is not None
    return taken


@pytest.fixture
def ids(queue: ReviewQueue, review: Review) -> dict[str, str]:
    return {"queue": queue.pk, "item": review.item_id, "review": review.pk}


def give(queue: ReviewQueue, user: User, clarity: int = 3) -> QueueItem:
    taken = take_review(caller=Caller(user=user), queue=queue)
    assert taken is not None
    answers = {"clarity": {"value": clarity}, "polite": {"value": True}, "kind_of": {"value": "other"}}
    submit_review(caller=Caller(user=user), review=taken, said=Submission(answers=answers))
    return taken.item


def test_a_reviewer_works_through_plain_forms(queue: ReviewQueue, reviewer_browser: Client, mate: User) -> None:
    html = reviewer_browser.get(f"{ROOT}/{queue.pk}/work").content.decode()
    review = Review.objects.get()
    for words in ("task 2", "How clear?", "1 is muddy.", "Something else", "<strong>kind</strong>", "3</strong> left"):
        assert words in html, words
    assert "<b>x</b>" not in html
    assert html.count('type="radio"') == 5 + 2 + 2
    assert "step reward" not in html
    address = re.search(r'action="([^"]+/submit)"', html)
    assert address is not None
    done = reviewer_browser.post(address[1], FORM, follow=True).content.decode()
    assert "Review saved" in done
    assert '<strong id="tally-done">1</strong> done' in done
    assert {label.field: label.said for label in Label.objects.all()} == {
        "clarity": 4,
        "polite": True,
        "kind_of": "refund",
        "comment": None,
    }
    undone = reviewer_browser.post(f"{ROOT}/{queue.pk}/work/{review.pk}/undo", follow=True).content.decode()
    assert "the item is open again" in undone
    assert "well done" in undone
    assert 'value="4.0" data-key="4" checked' in undone


def test_skip_and_put_back(queue: ReviewQueue, reviewer_browser: Client, review: Review) -> None:
    work = f"{ROOT}/{queue.pk}/work"
    assert (
        "not be given this item again"
        in reviewer_browser.post(f"{work}/{review.pk}/skip", follow=True).content.decode()
    )
    second = Review.objects.get(state="held")
    assert "end of the queue" in reviewer_browser.post(f"{work}/{second.pk}/requeue", follow=True).content.decode()
    assert reviewer_browser.post(f"{work}/{second.pk}/dance").status_code == 404


def test_the_next_item_comes_ahead_as_a_part(queue: ReviewQueue, reviewer_browser: Client, review: Review) -> None:
    part = reviewer_browser.get(f"{ROOT}/{queue.pk}/work?ahead={review.pk}").content.decode()
    assert part.lstrip().startswith('<div id="desk"')
    assert f'data-review="{review.pk}"' not in part
    again = reviewer_browser.get(f"{ROOT}/{queue.pk}/work?part=1").content.decode()
    assert f'data-review="{review.pk}"' in again


def test_scripts_get_data_and_errors_in_words(queue: ReviewQueue, reviewer_browser: Client, review: Review) -> None:
    address = f"{ROOT}/{queue.pk}/work/{review.pk}"
    as_data: dict[str, Any] = {"headers": {"Accept": "application/json"}}
    bad = reviewer_browser.post(f"{address}/submit", {"v-clarity": "9"}, **as_data)
    assert (bad.status_code, bad.json()["field"]) == (400, "clarity")
    assert "not answered yet" in reviewer_browser.post(f"{address}/submit", {}, **as_data).json()["error"]
    odd = reviewer_browser.post(f"{address}/submit", {"v-clarity": "{"}, **as_data)
    assert "is no answer to this" in odd.json()["error"]
    assert reviewer_browser.post(f"{address}/renew", **as_data).json()["message"] == "Still yours"
    tally = f"{ROOT}/{queue.pk}/work/tally"
    assert reviewer_browser.get(tally).json() == {"done": 0, "left": 3, "today": 0, "state": "open"}
    saved = reviewer_browser.post(f"{address}/submit", {**FORM, "seconds": "12"}, **as_data).json()
    assert saved["message"] == "Review saved"
    assert reviewer_browser.get(tally).json() == {"done": 1, "left": 2, "today": 1, "state": "open"}
    assert Review.objects.get(pk=review.pk).seconds == 12
    stranger = reviewer_browser.post(f"{ROOT}/{queue.pk}/work/{new_id('revw')}/submit", FORM, **as_data)
    assert stranger.status_code == 404


def test_a_submission_asks_the_database_little(
    queue: ReviewQueue, reviewer_browser: Client, review: Review, django_assert_max_num_queries: Callable[..., Any]
) -> None:
    address = f"{ROOT}/{queue.pk}/work/{review.pk}/submit"
    with django_assert_max_num_queries(19):  # four fields, each a label of its own
        saved = reviewer_browser.post(address, FORM, headers={"Accept": "application/json"})
    assert saved.json()["message"] == "Review saved"


def test_when_nothing_is_left_it_says_so(queue: ReviewQueue, reviewer_browser: Client) -> None:
    QueueItem.objects.all().delete()
    assert "Nothing is left for you here" in reviewer_browser.get(f"{ROOT}/{queue.pk}/work").content.decode()


@pytest.mark.parametrize("auto_add", [True, False])
def test_the_end_says_whether_more_comes_by_itself(
    queue: ReviewQueue, reviewer_browser: Client, auto_add: bool
) -> None:
    QueueItem.objects.all().delete()
    ReviewQueue.objects.update(auto_add=auto_add)
    html = reviewer_browser.get(f"{ROOT}/{queue.pk}/work").content.decode()
    assert ("later is added by itself" in html, "later is not added by itself" in html) == (auto_add, not auto_add)


def test_who_reviews_alone_has_nobody_to_be_blind_to(owner_browser: Client, owner: User, project: Project) -> None:
    box, words = '<input type="checkbox" name="is_blind"', "You are the only reviewer of this team"
    alone = owner_browser.get(f"{ROOT}/new").content.decode()
    assert (f"{box}>" in alone, words in alone) == (True, True)
    MembershipFactory.create(team=project.team, role=Role.VIEWER)
    assert words in owner_browser.get(f"{ROOT}/new").content.decode()
    MembershipFactory.create(team=project.team, role=Role.REVIEWER)
    several = owner_browser.get(f"{ROOT}/new").content.decode()
    assert (f"{box} checked>" in several, words in several) == (True, False)


def test_a_queue_is_made_counted_and_changed(
    trainer_browser: Client, add_trajectory: AddTrajectory, mate: User
) -> None:
    add_trajectory(channel="val")
    assert 'value="channel:val"' in trainer_browser.get(f"{ROOT}/new?q=channel:val").content.decode()
    form = {
        "name": "Val",
        "query": "channel:val",
        "mode": "score",
        "sample_percent": "50",
        "tolerance_percent": "10",
        "n_reviews": "3",
        "hold_minutes": "20",
        "field_names": ["reward"],
        "reviewers": [mate.email],
        "is_blind": "on",
    }
    counted = trainer_browser.post(f"{ROOT}/new", {**form, "count": "1"}).content.decode()
    assert "It finds <strong>1</strong> complete trajectory now" in counted
    pairs = trainer_browser.post(f"{ROOT}/new", {**form, "mode": "pairs", "count": "1"}).content.decode()
    assert "among them <strong>0</strong> pairs of tries at one task" in pairs
    by_hand = trainer_browser.post(f"{ROOT}/new", {**form, "query": "", "count": "1"}).content.decode()
    assert "filled by hand" in by_hand
    assert "It finds" not in by_hand
    for html in (counted, by_hand):
        assert "A search adds complete trajectories only. Open ones can be added by hand" in html
    assert not ReviewQueue.objects.exists()
    assert trainer_browser.post(f"{ROOT}/new", form).status_code == 302
    queue = ReviewQueue.objects.get()
    assert (queue.sample_rate, queue.tolerance, queue.n_reviews, queue.is_blind) == (0.5, 0.1, 3, True)
    settings = f"{ROOT}/{queue.pk}/settings"
    html = trainer_browser.get(settings).content.decode()
    assert 'name="sample_percent" id="q-sample" min="0.01" max="100" step="any" value="50"' in html
    changes: tuple[dict[str, Any], ...] = (
        {"name": ""},
        {"n_reviews": "many"},
        {"query": "colour:red"},
        {"field_names": []},
    )
    for change in changes:
        refused = trainer_browser.post(settings, {**form, **change})
        assert refused.status_code == 400
        assert 'role="alert"' in refused.content.decode()
    trainer_browser.post(settings, {**form, "name": "Other"})
    queue.refresh_from_db()
    assert queue.name == "Other"
    assert (
        "paused" in trainer_browser.post(f"{ROOT}/{queue.pk}/state", {"state": "paused"}, follow=True).content.decode()
    )


def test_results_tell_and_a_trainer_decides(
    queue: ReviewQueue, trainer_browser: Client, mate: User, owner: User, project: Project
) -> None:
    for user, clarity in ((mate, 1), (owner, 5)):
        item = give(queue, user, clarity)
    html = trainer_browser.get(f"{ROOT}/{queue.pk}/results?state=disputed").content.decode()
    for words in ("mate@example.org", "disputed", "How clear?", "2 of 2"):
        assert words in html
    assert '<td class="wide-only small">How clear?</td>' in html
    address = f"{ROOT}/{queue.pk}/items/{item.pk}"
    shown = trainer_browser.get(address).content.decode()
    assert '<dt>How clear? <span class="badge" data-tone="warn">disputed</span></dt><dd><strong>5</strong>' in shown
    assert "<dt>clarity" not in shown
    assert shown.count('class="box"') == 1
    assert shown.count('<article class="turn"') == item.trajectory.steps.count() > 0  # what is judged, beside it
    refused = trainer_browser.post(f"{address}/decide", {})
    assert (refused.status_code, "not answered yet" in refused.content.decode()) == (400, True)
    decided = trainer_browser.post(f"{address}/decide", {"v-clarity": "2.0"}, follow=True).content.decode()
    assert f'<form method="post" action="{address}/take-back">' in decided  # the message's Undo
    told = trainer_browser.get(address).content.decode()
    assert "Take it back" in told
    assert "<dt>How clear?</dt><dd><strong>2</strong>" in told
    undone = trainer_browser.post(f"{address}/take-back", follow=True).content.decode()
    assert undone.count('class="box"') == 1  # to decide anew
    late = trainer_browser.post(f"{address}/take-back")
    assert (late.status_code, "no decision to take back" in late.content.decode()) == (409, True)
    trainer_browser.post(f"{address}/decide", {"v-clarity": "2.0"})
    dataset = create_dataset(project=project, caller=Caller(user=owner), name="Good")
    pushed = trainer_browser.post(f"{ROOT}/{queue.pk}/dataset", {"dataset": dataset.pk}, follow=True)
    assert "1 added to Good" in pushed.content.decode()


def test_the_desk_says_why_nothing_can_be_undone(
    queue: ReviewQueue, reviewer_browser: Client, trainer_browser: Client, mate: User, owner: User
) -> None:
    work = f"{ROOT}/{queue.pk}/work"
    assert 'data-no-undo="You have given nothing here yet' in reviewer_browser.get(work).content.decode()
    item = give(queue, mate, 1)
    mine = Review.objects.get(reviewer=mate, state="submitted")
    give(queue, owner, 5)
    assert f'data-last="{mine.pk}"' in reviewer_browser.get(work).content.decode()
    address = f"{ROOT}/{queue.pk}/items/{item.pk}"
    trainer_browser.post(f"{address}/decide", {"v-clarity": "2.0"})
    late = reviewer_browser.get(work).content.decode()
    assert 'data-no-undo="Too late to undo: somebody has decided this item since' in late
    assert "can take the decision back" in late
    refused = reviewer_browser.post(f"{work}/{mine.pk}/undo", headers={"Accept": "application/json"})
    assert (refused.status_code, "take the decision back" in refused.json()["error"]) == (409, True)
    trainer_browser.post(f"{address}/take-back")
    assert f'data-last="{mine.pk}"' in reviewer_browser.get(work).content.decode()


def test_what_others_said_is_hidden(queue: ReviewQueue, reviewer_browser: Client, owner: User) -> None:
    item = give(queue, owner, 5)
    html = reviewer_browser.get(f"{ROOT}/{queue.pk}/items/{item.pk}").content.decode()
    assert "This queue is blind" in html
    assert owner.email not in html.split("<main", 1)[1]
    results = reviewer_browser.get(f"{ROOT}/{queue.pk}/results").content.decode()
    assert "Hidden until you have given your review" in results


def test_a_pair_stands_side_by_side(
    project: Project, trainer: User, add_trajectory: AddTrajectory, reviewer_browser: Client
) -> None:
    caller = Caller(user=trainer)
    queue = create_queue(caller=caller, project=project, settings={"name": "Two", "mode": "pairs"})
    rows = [add_trajectory(group="g", title=title) for title in ("first", "second")]
    add_trajectories(caller=caller, queue=queue, ids=[row.pk for row in rows])
    html = reviewer_browser.get(f"{ROOT}/{queue.pk}/work").content.decode()
    assert "Which is better?" in html
    values = re.findall(r'name="v-better" value="([^"]+)"', html)
    assert len(values) == 3
    assert "#v0" not in html  # who spoke, and how fast, would lead
    assert 'class="meta"' not in html
    review = Review.objects.get()
    form = {"v-better": values[0].replace("&quot;", '"'), "t-better": "shorter"}
    assert reviewer_browser.post(f"{ROOT}/{queue.pk}/work/{review.pk}/submit", form).status_code == 302
    review.refresh_from_db()
    left = re.search(r'id="side-(traj_\w+)"', html)
    assert left is not None
    assert review.answers["better"] == {"value": left[1], "text": "shorter"}


def test_rows_of_the_list_are_added(
    queue: ReviewQueue, reviewer_browser: Client, add_trajectory: AddTrajectory
) -> None:
    assert f'<option value="{queue.pk}">Tone</option>' in reviewer_browser.get("/p/shop/trajectories").content.decode()
    form = {"action": "queue", "scope": "chosen", "id": [add_trajectory().pk], "queue": queue.pk}
    assert reviewer_browser.post("/p/shop/trajectories", form).status_code == 302


@pytest.mark.parametrize("address", PAGES)
def test_members_see_the_page(address: str, ids: dict[str, str], reviewer_browser: Client) -> None:
    response = reviewer_browser.get(ROOT + address.format(**ids))
    assert response.status_code == 200
    assert " style=" not in response.content.decode()


@pytest.mark.parametrize("address", [*PAGES, *TRAINERS_PAGES])
def test_strangers_are_told_nothing(
    address: str, ids: dict[str, str], stranger_browser: Client, anonymous_browser: Client, viewer_browser: Client
) -> None:
    path = ROOT + address.format(**ids)
    assert stranger_browser.get(path).status_code == 404
    assert anonymous_browser.get(path)["Location"].startswith("/login")
    looks = 200 if address in {"", "/{queue}/results"} else 403
    assert viewer_browser.get(path).status_code == looks
    assert stranger_browser.delete(path).status_code == 405


@pytest.mark.parametrize(("address", "role"), CHANGES)
def test_only_who_may_changes(
    address: str,
    role: str,
    ids: dict[str, str],
    stranger_browser: Client,
    viewer_browser: Client,
    reviewer_browser: Client,
    trainer_browser: Client,
) -> None:
    path = ROOT + address.format(**ids)
    assert stranger_browser.post(path).status_code == 404
    assert viewer_browser.post(path).status_code == 403
    if role == TRAINER:
        assert reviewer_browser.post(path).status_code == 403
    if "{review}" in address:  # somebody else's
        assert trainer_browser.post(path).status_code == 404
    assert Review.objects.get().state == "held"


def test_what_is_missing_is_404(
    queue: ReviewQueue, trainer_browser: Client, other_project: Project, agent: Agent
) -> None:
    for queue_id in ("nonsense", new_id("queue")):
        assert trainer_browser.get(f"{ROOT}/{queue_id}/results").status_code == 404
    assert trainer_browser.get(f"{ROOT}/{queue.pk}/items/{new_id('item')}").status_code == 404
    assert trainer_browser.get(f"{ROOT}/{queue.pk}/results?state=odd").status_code == 400
    assert trainer_browser.post(f"{ROOT}/{queue.pk}/dataset", {"dataset": "x"}).status_code == 404


def skip(queue: ReviewQueue, user: User) -> None:
    taken = take_review(caller=Caller(user=user), queue=queue)
    assert taken is not None
    skip_review(caller=Caller(user=user), review=taken)


def test_the_list_says_what_waits_for_nobody_and_offers_review_only_to_who_is_named(
    queue: ReviewQueue, reviewer_browser: Client, trainer_browser: Client, mate: User, owner: User
) -> None:
    queue.reviewers.set([mate, owner])
    work = f"{ROOT}/{queue.pk}/work"
    assert "for nobody" not in reviewer_browser.get(ROOT).content.decode()
    give(queue, owner)
    skip(queue, mate)
    html = reviewer_browser.get(ROOT).content.decode()
    assert "1 waits for nobody" in html
    assert f"{ROOT}/{queue.pk}/results?state=stuck#items-title" in html
    assert work in html
    others = trainer_browser.get(ROOT).content.decode()
    assert ("1 waits for nobody" in others, work in others) == (True, False)
    assert work not in trainer_browser.get(f"{ROOT}/{queue.pk}/results").content.decode()
    assert trainer_browser.get(work).status_code == 403


def test_a_queues_page_says_what_waits_for_nobody_and_leads_on(
    queue: ReviewQueue, reviewer_browser: Client, trainer_browser: Client, mate: User, owner: User, trainer: User
) -> None:
    queue.reviewers.set([mate, owner])
    item = give(queue, owner)
    page, item_page = f"{ROOT}/{queue.pk}/results", f"{ROOT}/{queue.pk}/items/{item.pk}"
    assert "May still be given to mate@example.org." in reviewer_browser.get(item_page).content.decode()
    skip(queue, mate)
    html = reviewer_browser.get(page).content.decode()
    for words in (
        "1 waits for nobody:",
        "<strong>2</strong> wait to be taken",
        "mate@example.org 2",
        "A trainer or an",
    ):
        assert words in html, words
    assert "waits for nobody" in reviewer_browser.get(item_page).content.decode()
    assert item.pk in reviewer_browser.get(f"{page}?state=stuck").content.decode()
    html = trainer_browser.get(page).content.decode()
    assert "Ask who skipped 1 of them again" in html
    assert "Close 1 with the reviews there are" in html
    assert (
        "1 item may be given again"
        in trainer_browser.post(f"{ROOT}/{queue.pk}/ask-skipped", follow=True).content.decode()
    )
    assert "No item waits for nobody" in trainer_browser.get(f"{page}?state=stuck").content.decode()
    skip(queue, mate)
    assert "1 item closed" in trainer_browser.post(f"{ROOT}/{queue.pk}/close-stuck", follow=True).content.decode()
    assert QueueItem.objects.get(pk=item.pk).state == "done"


def test_who_has_nothing_left_may_take_what_they_skipped(
    queue: ReviewQueue, reviewer_browser: Client, mate: User
) -> None:
    for _ in range(3):
        skip(queue, mate)
    work = f"{ROOT}/{queue.pk}/work"
    assert "3 items that you skipped are still open" in reviewer_browser.get(work).content.decode()
    html = reviewer_browser.post(f"{work}/skipped", follow=True).content.decode()
    assert "You may be given 3 items again that you had skipped" in html
    assert '<strong id="tally-left">3</strong>' in html


@pytest.mark.parametrize(
    ("n_reviews", "others", "words"),
    [
        (
            2,
            ["owner@example.org"],
            "owner@example.org will be asked anyway, since this queue wants 2 reviews of an item",
        ),
        (1, ["owner@example.org"], "owner@example.org will be asked; the item stays open until then"),
        (1, ["owner@example.org", "trainer@example.org"], "owner@example.org or trainer@example.org will be asked"),
        (1, [], "Nobody else is left who may review this item here, so it stays open until somebody is"),
    ],
)
def test_who_asks_for_a_second_opinion_is_told_who_follows(
    queue: ReviewQueue,
    reviewer_browser: Client,
    mate: User,
    owner: User,
    trainer: User,
    n_reviews: int,
    others: list[str],
    words: str,
) -> None:
    queue.reviewers.set([mate, *(user for user in (owner, trainer) if user.email in others)])
    ReviewQueue.objects.update(n_reviews=n_reviews)
    queue.items.update(n_wanted=n_reviews)
    html = reviewer_browser.get(f"{ROOT}/{queue.pk}/work").content.decode()
    assert ("somebody else is asked anyway: this item gets 2 reviews" in html) == (n_reviews == 2)
    submit = f"{ROOT}/{queue.pk}/work/{Review.objects.get().pk}/submit"
    told = reviewer_browser.post(submit, {**FORM, "wants_second": "1"}, headers={"accept": "application/json"}).json()
    assert told["message"].startswith(f"Review saved. {words}")
    item = QueueItem.objects.get(n_done=1)
    assert (item.state, item.n_wanted) == ("open", 2)


def test_a_second_opinion_is_not_promised_twice(
    queue: ReviewQueue, reviewer_browser: Client, trainer_browser: Client, mate: User, owner: User, trainer: User
) -> None:
    queue.reviewers.set([mate, owner])
    item = give(queue, mate)
    again = f"{ROOT}/{queue.pk}/items/{item.pk}/again"
    taken = take_review(caller=Caller(user=owner), queue=queue)
    assert taken is not None
    assert "has this item at hand already" in trainer_browser.post(again, follow=True).content.decode()
    QueueItem.objects.filter(pk=item.pk).update(n_wanted=10)
    assert trainer_browser.post(again).status_code == 409


def test_a_form_that_is_not_filled_in_stands_there_again_with_what_is_wrong(
    queue: ReviewQueue, reviewer_browser: Client, review: Review
) -> None:
    address = f"{ROOT}/{queue.pk}/work/{review.pk}/submit"
    form = {"v-clarity": "4.0", "t-comment": "half a thought", "wants_second": "1"}
    answer = reviewer_browser.post(address, form)
    html = answer.content.decode()
    assert (answer.status_code, Review.objects.get().state) == (400, "held")
    assert re.search(r'id="review-error" role="alert">[^<]* is not answered yet\.<', html)
    assert 'value="4.0" data-key="4" checked' in html
    assert "half a thought</textarea>" in html
    assert 'name="wants_second" value="1" checked' in html
    assert f'action="{address}"' in html
    odd = reviewer_browser.post(address, {"v-clarity": "{"})
    assert (odd.status_code, "is no answer to this" in odd.content.decode()) == (400, True)
