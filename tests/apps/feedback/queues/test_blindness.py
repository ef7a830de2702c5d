"""While somebody reviews an item in a blind queue, no door shows them what others said of it: neither the reward nor
the words, neither REST nor pages, neither in a list nor by what a search finds. Others see it all the while."""

import re
from collections.abc import Callable

import pytest
from django.test import Client
from rest_framework.test import APIClient

from apps.accounts.models import Project, User
from apps.core.errors import Conflict
from apps.feedback.bulk import ACTIONS
from apps.feedback.graders.backfilling import fill_backfill
from apps.feedback.graders.models import DryRun, GraderVersion
from apps.feedback.graders.services import VersionDraft, create_grader, start_backfill
from apps.feedback.graders.trying import run_dry_run
from apps.feedback.models import Label
from apps.feedback.queues.filling import fill_queue, tend_queues
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.feedback.queues.results import find_seen
from apps.feedback.queues.services import change_queue, create_queue
from apps.feedback.queues.working import (
    Submission,
    put_back_review,
    release_everywhere,
    skip_review,
    submit_review,
    undo_review,
)
from apps.trajectories.blindness import find_hidden
from apps.trajectories.bulk.running import run_job
from apps.trajectories.bulk.services import start_job
from apps.trajectories.datasets.services import create_dataset
from tests.apps.feedback.queues.conftest import Add, MakeQueue, World, by
from tests.apps.feedback.queues.test_working import give, run_out, say, take
from tests.factories.feedback import LabelFactory

pytestmark = pytest.mark.django_db

# The trainer's judgement: its value (which the seconds of a time, "10.37", are not), its words, their correction.
TOLD = re.compile(rb"(?<!\d)0\.37|dull words|a better answer")
API = (
    "trajectories?project=shop",
    "trajectories?project=shop&q=reward<0",
    "trajectories?project=shop&q=label:human",
    "trajectories?project=shop&q=grader:x",
    "trajectories?project=shop&has_reward=1",
    "trajectories/{trajectory}",
    "trajectories/{trajectory}/steps",
    "trajectories/{trajectory}/tokens",
    "trajectories/{trajectory}/labels",
    "steps/{step}/labels",
    "preferences?project=shop",
    "hints?project=shop",
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


@pytest.fixture
def world(world: World, project: Project) -> World:
    """A grader has spoken, too."""
    said_by = GraderVersion.objects.get(grader=world.ids["grader"])
    LabelFactory.create(
        trajectory_id=world.ids["trajectory"], project=project, source="rule", grader=said_by, value=-0.37
    )
    return world


def tells(content: bytes) -> bool:
    return TOLD.search(content) is not None


def assert_kept_from(mate: Client, url: str, *, others: Client) -> None:
    """Both may read it, and it tells only the others."""
    mine, theirs = mate.get(url), others.get(url)
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert (tells(mine.content), tells(theirs.content)) == (False, True)


@pytest.mark.parametrize("address", API)
def test_rest_tells_nothing(
    world: World, client_of: Callable[[User], APIClient], mate: User, trainer: User, address: str
) -> None:
    assert_kept_from(client_of(mate), f"/api/v1/{address.format(**world.ids)}", others=client_of(trainer))


@pytest.mark.parametrize("address", PAGES)
def test_pages_tell_nothing(
    world: World, browser_of: Callable[[User], Client], mate: User, trainer: User, address: str
) -> None:
    assert_kept_from(browser_of(mate), f"/p/shop/{address.format(**world.ids)}", others=browser_of(trainer))


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
    own = "0.5, from one human label; what was said of a step (worth 0.5) does not count here"  # both their own words
    assert (listed["reward"], listed["score"]["words"].partition(":")[0]) == (0.5, own)
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


@pytest.mark.parametrize("source", ["rule", "judge", "next_state", "end_user", "environment"])
def test_what_graders_and_end_users_say_stands_in_no_undos_way(
    queue: ReviewQueue, client_of: Callable[[User], APIClient], mate: User, source: str
) -> None:
    given = give(queue, mate)
    trajectory = given.item.trajectory
    LabelFactory.create(trajectory=trajectory, project=trajectory.project, source=source, value=-0.5)
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


def test_what_somebody_has_looked_for_by_a_judgement_leaves_out_what_is_hidden_from_them(
    world: World, project: Project, trainer: User, owner: User
) -> None:
    take(world.review.queue, trainer)
    found: dict[str, list[int]] = {}
    for number, user in enumerate((trainer, owner)):
        settings = {"name": f"low {number}", "query": "reward<0"}
        queue = create_queue(caller=by(user), project=project, settings=settings)
        found.setdefault("queue", []).append(fill_queue(queue.pk))
        draft = VersionDraft(settings={"pattern": "x"}, query="reward<0")
        version, _ = create_grader(caller=by(user), project=project, name=f"low-{number}", kind="regex", draft=draft)
        dry_run = DryRun.objects.create(version=version, author=user, n_wanted=1)
        run_dry_run(dry_run.pk)
        dry_run.refresh_from_db()
        found.setdefault("dry run", []).append(len(dry_run.results))
        DryRun.objects.create(version=version, n_wanted=1, state="done")  # somebody else tried it too
        backfill = start_backfill(caller=by(user), version=version, query="reward<0")
        fill_backfill(backfill.pk)
        backfill.refresh_from_db()
        found.setdefault("back-fill", []).append(backfill.n_total)
    assert found == {"queue": [0, 1], "dry run": [0, 1], "back-fill": [0, 1]}


def test_what_a_search_left_out_comes_in_once_who_chose_it_may_see_it(
    world: World, make_queue: MakeQueue, project: Project, trainer: User, owner: User
) -> None:
    held = take(world.review.queue, trainer)
    settings = {"query": "reward<0", "n_reviews": 1}
    queues = [
        create_queue(caller=by(trainer), project=project, settings={**settings, "name": str(auto), "auto_add": auto})
        for auto in (False, True)
    ]
    assert [fill_queue(queue.pk) for queue in queues] == [0, 0]
    tend_queues()
    assert not QueueItem.objects.filter(queue__in=queues).exists()
    submit_review(caller=by(trainer), review=held, said=say(-0.5))
    tend_queues()
    found = QueueItem.objects.filter(queue__in=queues).values_list("queue", "trajectory")
    assert set(found) == {(queue.pk, world.ids["trajectory"]) for queue in queues}
    for queue in queues:
        queue.refresh_from_db()
        assert queue.left_out == []


def test_a_search_is_asked_for_whoever_chose_it_last(
    world: World, project: Project, trainer: User, owner: User
) -> None:
    take(world.review.queue, trainer)
    queue = create_queue(caller=by(owner), project=project, settings={"name": "low", "query": "reward<-0.9"})
    assert fill_queue(queue.pk) == 0
    change_queue(caller=by(trainer), queue=queue, settings={"query": "reward<0"})
    assert fill_queue(queue.pk) == 0
    change_queue(caller=by(trainer), queue=queue, settings={"guideline": "the same search"})
    change_queue(caller=by(owner), queue=queue, settings={"query": "reward<0.1"})
    change_queue(caller=by(trainer), queue=queue, settings={"guideline": "still the owner's search"})
    assert fill_queue(queue.pk) == 1
