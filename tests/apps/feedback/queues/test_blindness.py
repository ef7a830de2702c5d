"""While somebody reviews an item in a blind queue, no door shows them what others said of it: neither the reward nor
the words, neither REST nor pages, neither in a list nor by what a search finds. Others see it all the while."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.accounts.models import Project, User
from apps.core.errors import Conflict
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.models import DryRun
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.models import Label
from apps.feedback.preferences.services import add_correction
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.feedback.queues.results import find_seen
from apps.feedback.queues.services import change_queue
from apps.feedback.queues.working import (
    Submission,
    put_back_review,
    release_everywhere,
    skip_review,
    submit_review,
    undo_review,
)
from apps.feedback.services import add_label
from apps.trajectories.blindness import find_hidden
from apps.trajectories.bulk.running import run_job
from apps.trajectories.bulk.services import start_job
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by
from tests.apps.feedback.queues.test_working import give, run_out, say, take

pytestmark = pytest.mark.django_db

TOLD = ("0.37", "dull words", "a better answer")  # the trainer's judgement: its value, its words, their correction
API = (
    "trajectories?project=shop",
    "trajectories?project=shop&q=reward<0",
    "trajectories?project=shop&q=label:human",
    "trajectories?project=shop&has_reward=1",
    "trajectories/{trajectory}",
    "trajectories/{trajectory}/steps",
    "trajectories/{trajectory}/tokens",
    "trajectories/{trajectory}/labels",
    "steps/{step}/labels",
    "preferences?project=shop",
    "datasets/{dataset}/trajectories",
    "snapshots/{snapshot}/entries",
    "snapshots/{snapshot}/diff?base={empty}",
    "dry-runs/{dry_run}",
)
PAGES = (
    "",
    "trajectories",
    "trajectories?q=reward<0",
    "trajectories/{trajectory}",
    "trajectories/{other}/diff?with={trajectory}",
    "datasets/{dataset}",
    "snapshots/{snapshot}",
    "snapshots/{snapshot}/diff?base={empty}",
    "graders/{grader}",
    "review/{queue}/results",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """A review that the mate holds, and by name the ids of what tells of its trajectory."""

    review: Review
    ids: dict[str, str]


@pytest.fixture
def world(make_queue: MakeQueue, add: Add, project: Project, mate: User, trainer: User) -> World:
    """The trainer has judged what the mate reviews: with a label of the whole and of its step, and a correction."""
    trajectory, other = add(group="g"), add(group="g")
    queue = make_queue(trajectory)
    review, step, author = take(queue, mate), trajectory.steps.get(), by(trainer)
    label = add_label(caller=author, trajectory=trajectory, value=-0.37, text="dull words")
    add_label(caller=author, trajectory=trajectory, step=step, value=-0.37)
    add_correction(caller=author, step=step, message="a better answer")
    add_label(caller=author, trajectory=other, value=1)  # so that no mean over a dataset is that of one trajectory
    dataset = create_dataset(project=project, caller=author, name="d")
    add_ids_to_dataset(dataset=dataset, caller=author, ids=[other.pk])
    empty = take_snapshot(dataset=dataset, caller=author)
    add_ids_to_dataset(dataset=dataset, caller=author, ids=[trajectory.pk])
    snapshot = take_snapshot(dataset=dataset, caller=author)
    draft = VersionDraft(settings={"pattern": "x"})
    version, _ = create_grader(caller=author, project=project, name="x", kind="regex", draft=draft)
    result = {"trajectory": trajectory.pk, "title": "", "step": None, "answer": "hi", "value": -0.37, "reward": -0.37}
    result |= {"text": "dull words", "hint": "", "problem": "", "people": -0.37}
    dry_run = DryRun.objects.create(version=version, n_wanted=1, state="done", results=[result])
    rows = {"trajectory": trajectory, "other": other, "step": step, "label": label, "dataset": dataset, "queue": queue}
    rows |= {"snapshot": snapshot, "empty": empty, "dry_run": dry_run, "grader": version.grader}
    return World(review=review, ids={name: str(row.pk) for name, row in rows.items()})


def tells(content: bytes) -> bool:
    return any(word in content.decode() for word in TOLD)


@pytest.mark.parametrize("address", API)
def test_rest_tells_nothing(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User, address: str
) -> None:
    url = f"/api/v1/{address.format(**world.ids)}"
    mine, theirs = client_of(mate).get(url), client_of(trainer).get(url)
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert (tells(mine.content), tells(theirs.content)) == (False, True)


@pytest.mark.parametrize("address", PAGES)
def test_pages_tell_nothing(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User, address: str
) -> None:
    url = f"/p/shop/{address.format(**world.ids)}"
    mine, theirs = browser_of(mate).get(url), browser_of(trainer).get(url)
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert (tells(mine.content), tells(theirs.content)) == (False, True)


def test_what_one_says_meanwhile_tells_nothing_either(
    world: World, client_of: Callable[[User], APIClient], browser_of: Callable[[User], Client], mate: User
) -> None:
    client, page = client_of(mate), f"/p/shop/trajectories/{world.ids['trajectory']}"
    step = {"value": "0.5", "step": world.ids["step"]}
    for form in ({"value": "0.5"}, step):
        answer = browser_of(mate).post(f"{page}/labels", form, headers={"HX-Request": "true"})
        assert (answer.status_code, tells(answer.content)) == (200, False)
    labels = f"/api/v1/trajectories/{world.ids['trajectory']}/labels"
    added = client.post(labels, {"value": 0.5}, format="json").json()
    assert added["reward"] is None
    listed = client.get(labels).json()
    assert {item["author"] for item in listed["items"]} == {mate.email}
    assert (listed["reward"], listed["score"]["words"]) == (0.5, "0.5, from one human label")
    assert client.post(f"/api/v1/labels/{added['id']}/take-back").json()["reward"] is None
    assert client.post(f"/api/v1/labels/{world.ids['label']}/take-back").status_code == 404


def test_who_has_submitted_sees_it(world: World, client_of: Callable[[User], APIClient], mate: User) -> None:
    submit_review(caller=by(mate), review=world.review, said=say(1))
    listed = client_of(mate).get(f"/api/v1/trajectories/{world.ids['trajectory']}/labels")
    assert tells(listed.content)
    assert listed.json()["reward"] == pytest.approx((1 - 0.37) / 2)


def test_only_who_reviews_in_a_blind_queue_is_kept_from_it(
    world: World, make_queue: MakeQueue, add: Add, mate: User, trainer: User
) -> None:
    assert find_hidden(by(mate)) == {world.ids["trajectory"]}
    assert find_hidden(by(trainer)) == set()
    change_queue(caller=by(trainer), queue=world.review.queue, settings={"is_blind": False})
    assert find_hidden(by(mate)) == set()
    one, other = add(group="p"), add(group="p")
    pair = take(make_queue(one, other, name="pairs", mode="pairs"), mate)
    assert find_hidden(by(mate)) == {one.pk, other.pk}
    submit_review(caller=by(mate), review=pair, said=Submission(answers={"better": {"value": "tie"}}))
    assert find_hidden(by(mate)) == set()


GIVE_UP = {"put back": put_back_review, "skipped": skip_review}


@pytest.mark.parametrize("how", sorted(GIVE_UP))
def test_what_was_given_up_stays_hidden_until_it_has_its_reviews(
    world: World,
    client_of: Callable[[User], APIClient],
    mate: User,
    second: User,
    trainer: User,
    how: str,
) -> None:
    GIVE_UP[how](caller=by(mate), review=world.review)
    for address in ("trajectories/{trajectory}", "trajectories/{trajectory}/labels"):
        assert not tells(client_of(mate).get(f"/api/v1/{address.format(**world.ids)}").content)
    assert find_hidden(by(mate)) == {world.ids["trajectory"]}
    give(world.review.queue, second)
    assert find_hidden(by(mate)) == {world.ids["trajectory"]}
    give(world.review.queue, trainer)
    assert find_hidden(by(mate)) == set()


def test_what_lapsed_stays_hidden_and_who_submits_after_all_sees_it(world: World, mate: User) -> None:
    run_out(world.review)
    release_everywhere()
    assert find_hidden(by(mate)) == {world.ids["trajectory"]}
    put_back_review(caller=by(mate), review=take(world.review.queue, mate))
    give(world.review.queue, mate)
    assert find_hidden(by(mate)) == set()


def test_a_trainer_who_put_an_item_back_does_not_see_its_reviews(world: World, mate: User, trainer: User) -> None:
    give(world.review.queue, mate)
    queue, item = world.review.queue, QueueItem.objects.get()
    assert find_seen(queue, [item], caller=by(trainer))
    put_back_review(caller=by(trainer), review=take(queue, trainer))
    assert not find_seen(queue, [item], caller=by(trainer))


def test_no_review_is_undone_once_its_author_could_see_others(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User
) -> None:
    given = submit_review(caller=by(mate), review=world.review, said=say(1))
    answer = client_of(mate).post(f"/api/v1/reviews/{given.pk}/undo")
    assert (answer.status_code, "this queue is blind" in answer.content.decode()) == (409, True)
    assert Review.objects.get().state == "submitted"
    change_queue(caller=by(trainer), queue=world.review.queue, settings={"is_blind": False})
    assert client_of(mate).post(f"/api/v1/reviews/{given.pk}/undo").status_code == 200


def test_a_pair_that_others_compared_is_not_undone(make_queue: MakeQueue, add: Add, mate: User, second: User) -> None:
    queue = make_queue(add(group="p"), add(group="p"), mode="pairs")
    tie = Submission(answers={"better": {"value": "tie"}})
    given = submit_review(caller=by(mate), review=take(queue, mate), said=tie)
    undo_review(caller=by(mate), review=given)
    submit_review(caller=by(mate), review=given, said=tie)
    submit_review(caller=by(second), review=take(queue, second), said=tie)
    with pytest.raises(Conflict, match="this queue is blind"):
        undo_review(caller=by(mate), review=given)


def read_sums(client: APIClient, ids: dict[str, str]) -> list[tuple[int, float]]:
    """Return how many rewards, and their mean, in what tells of the dataset's rewards."""
    totals = client.get(f"/api/v1/datasets/{ids['dataset']}").json()["totals"]
    assert sum(one["n"] for one in totals["histogram"]) == totals["n_rewarded"]
    taken = client.post(f"/api/v1/datasets/{ids['dataset']}/snapshots", {}, format="json").json()
    read = client.get(f"/api/v1/snapshots/{ids['snapshot']}").json()
    listed = client.get(f"/api/v1/datasets/{ids['dataset']}/snapshots").json()["items"]
    return [(one["n_rewarded"], round(one["mean_reward"], 3)) for one in (totals, taken, read, listed[1])]


def test_sums_leave_out_what_is_hidden(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User
) -> None:
    assert read_sums(client_of(mate), world.ids) == [(1, 1.0)] * 4
    assert read_sums(client_of(trainer), world.ids) == [(2, 0.315)] * 4
    address = f"/api/v1/snapshots/{world.ids['snapshot']}"
    assert client_of(mate).get(address).json()["checksum"] == ""
    assert client_of(trainer).get(address).json()["checksum"]
    only = create_dataset(project=world.review.queue.project, caller=by(trainer), name="only")
    add_ids_to_dataset(dataset=only, caller=by(trainer), ids=[world.ids["trajectory"]])
    totals = client_of(mate).get(f"/api/v1/datasets/{only.pk}").json()["totals"]
    assert (totals["n_trajectories"], totals["n_rewarded"], totals["mean_reward"]) == (1, 0, None)


@pytest.mark.parametrize("address", ["datasets/{dataset}", "snapshots/{snapshot}"])
def test_pages_sum_without_what_is_hidden(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User, address: str
) -> None:
    url = f"/p/shop/{address.format(**world.ids)}"
    mine, theirs = (browser_of(user).get(url).content.decode() for user in (mate, trainer))
    assert ("0.315" in mine or "0.32" in mine, "0.315" in theirs or "0.32" in theirs) == (False, True)


def test_a_difference_names_no_change_of_a_hidden_reward(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User
) -> None:
    trajectory = world.review.item.trajectory
    add_label(caller=by(trainer), trajectory=trajectory, value=0.8)
    dataset = Dataset.objects.get(pk=world.ids["dataset"])
    now = take_snapshot(dataset=dataset, caller=by(trainer))
    url = f"/api/v1/snapshots/{now.pk}/diff?base={world.ids['snapshot']}"
    mine, theirs = client_of(mate).get(url).json(), client_of(trainer).get(url).json()
    assert (mine["counts"]["changed"], theirs["counts"]["changed"]) == (0, 1)
    assert ([one["trajectory"] for one in mine["items"]], len(theirs["items"])) == ([], 1)


def test_what_one_selects_by_a_reward_has_nothing_that_is_hidden(
    world: World, project: Project, client_of: Callable[[User], APIClient], mate: User, second: User
) -> None:
    for user, n in ((mate, 0), (second, 1)):
        dataset = create_dataset(project=project, caller=by(user), name=user.email)
        url = f"/api/v1/datasets/{dataset.pk}/trajectories"
        added = client_of(user).post(url, {"query": "reward<0"}, format="json")
        assert (added.status_code, added.json()["n_added"]) == (200, n)
        job = start_job(
            caller=by(user), project=project, action=ACTIONS["tag"], settings={"tag": "low"}, query="reward<0"
        )
        run_job(job.pk, actions=ACTIONS)
        job.refresh_from_db()
        assert (job.state, job.n_total, job.n_done) == ("done", n, n)


def test_items_are_listed_without_what_was_said(
    make_queue: MakeQueue, add: Add, client_of: Callable[[User], APIClient], mate: User, second: User, viewer: User
) -> None:
    queue: ReviewQueue = make_queue(add())
    give(queue, mate, 1)
    give(queue, second, -1)
    assert QueueItem.objects.get().disputed == ["reward"]
    url = f"/api/v1/review-queues/{queue.pk}/items"
    assert client_of(viewer).get(url).json()["items"][0]["disputed"] == []
    assert client_of(mate).get(url).json()["items"][0]["disputed"] == ["reward"]
    assert Label.objects.count() == 2
