"""While somebody reviews an item in a blind queue, no door shows them what others said of it: neither the reward nor
the words, neither REST nor pages, neither in a list nor by what a search finds. Others see it all the while."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.accounts.models import Project, User
from apps.feedback.graders.models import DryRun
from apps.feedback.graders.services import VersionDraft, create_grader
from apps.feedback.models import Label
from apps.feedback.preferences.services import add_correction
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.feedback.queues.services import change_queue
from apps.feedback.queues.working import skip_review, submit_review
from apps.feedback.services import add_label
from apps.trajectories.blindness import find_hidden
from apps.trajectories.datasets.services import add_ids_to_dataset, create_dataset, take_snapshot
from tests.apps.feedback.queues.conftest import Add, MakeQueue, by
from tests.apps.feedback.queues.test_working import give, say, take

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
    skip_review(caller=by(mate), review=pair)
    assert find_hidden(by(mate)) == set()


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
