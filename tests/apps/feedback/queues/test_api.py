"""Review queues over REST: each endpoint with the same litany."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from apps.accounts.access import Caller
from apps.accounts.models import User
from apps.core.ids import new_id
from apps.feedback.models import Label
from apps.feedback.queues.filling import fill_queue
from apps.feedback.queues.models import QueueItem, Review, ReviewQueue
from apps.trajectories.datasets.services import create_dataset
from apps.trajectories.models import Trajectory
from tests.apps.feedback.queues.conftest import Add, MakeQueue
from tests.apps.feedback.queues.test_working import give

pytestmark = pytest.mark.django_db

QUEUES = "/api/v1/review-queues"
Login = Callable[[User], APIClient]
SAID = {"answers": {"reward": {"value": 0.5, "text": "fine"}}, "seconds": 7}


@pytest.fixture
def mates(client_of: Login, mate: User) -> APIClient:
    return client_of(mate)


@pytest.fixture
def trainers(client_of: Login, trainer: User) -> APIClient:
    return client_of(trainer)


@pytest.fixture
def url(queue: ReviewQueue) -> str:
    return f"{QUEUES}/{queue.pk}"


@pytest.fixture
def review(mates: APIClient, url: str) -> str:
    """The address of a review that the mate holds."""
    return f"/api/v1/reviews/{mates.post(f'{url}/next').json()['review']['id']}"


@pytest.fixture
def item(review: str) -> str:
    return f"/api/v1/review-items/{Review.objects.get().item_id}"


def test_a_queue_is_made_listed_and_changed(
    manage_client: APIClient, trainers: APIClient, mate: User, add: Add
) -> None:
    add(channel="val")
    body = {"name": "tone", "query": "channel:val", "n_reviews": 3, "reviewers": [mate.email], "auto_add": True}
    made = manage_client.post(QUEUES, body)
    assert (made.status_code, made.json()["field_names"]) == (201, ["reward", "comment"])
    url = f"{QUEUES}/{made.json()['id']}"
    assert fill_queue(made.json()["id"]) == 1
    changed = trainers.patch(url, {"guideline": "Be kind.", "state": "paused"}).json()
    assert (changed["guideline"], changed["state"], changed["reviewers"]) == ("Be kind.", "paused", [mate.email])
    assert trainers.get(url).json() == changed
    page = trainers.get(QUEUES, {"project": "shop"}).json()
    assert page == {"items": [changed], "next_before": None}
    [listed] = trainers.get(f"{url}/items", {"state": "open"}).json()["items"]
    assert listed["n_wanted"] == 3
    assert trainers.get(f"{url}/items", {"state": "done"}).json()["items"] == []


def test_a_reviewer_goes_through_a_queue(mates: APIClient, url: str) -> None:
    first = mates.post(f"{url}/next").json()
    assert first["left"] == 3
    review = f"/api/v1/reviews/{first['review']['id']}"
    ahead = mates.post(f"{url}/next", {"besides": first["review"]["id"]}).json()["review"]
    given = mates.post(f"{review}/submit", SAID).json()
    assert (given["state"], given["seconds"], len(given["labels"])) == ("submitted", 7, 1)
    assert mates.post(f"{review}/submit", SAID).json() == given
    assert mates.get(review).json() == given
    assert mates.post(f"{url}/next").json()["review"]["id"] == ahead["id"]
    assert mates.post(f"{review}/undo").json()["answers"] == given["answers"]
    assert mates.post(f"{review}/skip", {"reason": "I know them"}).json()["state"] == "skipped"
    put_back = mates.post(f"/api/v1/reviews/{ahead['id']}/requeue").json()
    assert (put_back["state"], put_back["labels"]) == ("returned", [])
    mates.post(f"{url}/next")
    assert mates.post(f"{url}/next").json()["left"] == 2


def test_when_nothing_is_left_it_says_so(mates: APIClient, queue: ReviewQueue, url: str) -> None:
    QueueItem.objects.all().delete()
    assert mates.post(f"{url}/next").json() == {"review": None, "left": 0}


def test_a_disagreement_is_decided_and_collected(
    mates: APIClient, trainers: APIClient, client_of: Login, second: User, url: str, item: str, review: str
) -> None:
    mates.post(f"{review}/submit", SAID)
    others = client_of(second)
    theirs = others.post(f"{url}/next").json()["review"]
    assert others.get(item).json()["reviews"] is None  # blind
    answers = {"reward": {"value": -1}}
    assert others.post(f"/api/v1/reviews/{theirs['id']}/submit", {"answers": answers}).status_code == 200
    shown = others.get(item).json()
    assert (shown["state"], shown["disputed"], len(shown["reviews"])) == ("disputed", ["reward"], 2)
    [listed] = trainers.get(f"{url}/items", {"state": "disputed"}).json()["items"]
    assert listed["id"] == shown["id"]
    assert trainers.post(f"{item}/ask-again").json()["state"] == "open"
    QueueItem.objects.filter(pk=listed["id"]).update(n_wanted=2, state="disputed", disputed=["reward"])
    decided = trainers.post(f"{item}/decide", {"answers": {"reward": {"value": 0}}}).json()
    assert (decided["state"], decided["decided_by"]) == ("decided", "trainer@example.org")
    assert Trajectory.objects.get(pk=listed["trajectory"]).reward == 0
    assert trainers.post(f"{item}/take-back").json()["state"] == "disputed"
    assert trainers.post(f"{item}/take-back").status_code == 409
    assert trainers.post(f"{item}/decide", {"answers": {"reward": {"value": 0}}}).status_code == 200
    found = trainers.get(f"{url}/results").json()
    assert (found["counts"]["decided"], len(found["progress"]), found["agreement"][0]["n_items"]) == (1, 2, 1)
    queue = ReviewQueue.objects.select_related("project").get()
    dataset = create_dataset(project=queue.project, caller=Caller(user=second), name="good")
    assert trainers.post(f"{url}/dataset", {"dataset": dataset.pk}).json() == {"added": 1}


def test_what_waits_for_nobody_is_told_and_goes_on(
    mates: APIClient, trainers: APIClient, client_of: Login, make_queue: MakeQueue, add: Add, mate: User, second: User
) -> None:
    queue = make_queue(add(), n_reviews=2, reviewers=[mate.email, second.email])
    url, item = f"{QUEUES}/{queue.pk}", f"/api/v1/review-items/{QueueItem.objects.get().pk}"
    give(queue, mate)
    assert mates.get(item).json()["askable"] == [second.email]
    others = client_of(second)
    others.post(f"/api/v1/reviews/{others.post(f'{url}/next').json()['review']['id']}/skip")
    assert trainers.get(f"{url}/results").json()["waiting"] == {
        "at_hand": 0,
        "free": 0,
        "stuck": 1,
        "skipped": 1,
        "reviewed": 1,
        "people": [{"name": mate.email, "left": 0}, {"name": second.email, "left": 0}],
    }
    assert (mates.get(item).json()["askable"], len(mates.get(f"{url}/items?state=stuck").json()["items"])) == ([], 1)
    assert trainers.post(f"{url}/ask-skipped", {"whom": "everybody"}).json() == {"items": 1}
    assert mates.get(f"{url}/items?state=stuck").json()["items"] == []
    assert trainers.post(f"{url}/ask-skipped", {"whom": "everybody"}).status_code == 409
    others.post(f"/api/v1/reviews/{others.post(f'{url}/next').json()['review']['id']}/skip")
    assert others.post(f"{url}/ask-skipped", {"whom": "me"}).json() == {"items": 1}
    others.post(f"/api/v1/reviews/{others.post(f'{url}/next').json()['review']['id']}/skip")
    assert trainers.post(f"{url}/close-stuck").json() == {"items": 1}
    assert (mates.get(item).json()["state"], trainers.post(f"{url}/close-stuck").status_code) == ("done", 409)


def test_items_are_added_by_hand(key_client: APIClient, make_queue: MakeQueue, rows: list[Trajectory]) -> None:
    url = f"{QUEUES}/{make_queue().pk}/items"
    body = {"ids": [row.pk for row in rows]}
    assert [key_client.post(url, body).json() for _ in range(2)] == [{"added": 3}, {"added": 0}]
    assert key_client.post(url, {"ids": [new_id("traj")]}).json()["field"] == "ids"


def test_events_are_read_from_a_number_on(mates: APIClient, url: str, review: str) -> None:
    found = mates.get(f"{url}/events", {"since": 2}).json()
    assert ([event["kind"] for event in found["items"]], found["newest"]) == (["taken"], 3)
    assert found["items"][0]["number"] == 3


def test_a_lost_reservation_and_a_stale_undo_are_told(
    mates: APIClient, review: str, queue: ReviewQueue, mate: User, second: User
) -> None:
    QueueItem.objects.exclude(reviews__state="held").delete()
    QueueItem.objects.update(n_wanted=1)
    Review.objects.update(expires_at=timezone.now() - timedelta(minutes=1))
    give(queue, second)
    late = mates.post(f"{review}/submit", SAID)
    assert late.status_code == 409
    assert "your reservation ran out" in late.json()["detail"]
    assert mates.post(f"{review}/undo").status_code == 409
    assert Label.objects.get().author == second


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("", {}),
        ("", {"name": "x", "colour": "red"}),
        ("", {"name": "x", "n_reviews": "many"}),
        ("", {"name": "x", "mode": "both"}),
        ("", {"name": "x", "query": "colour:red"}),
        ("", {"name": "x", "field_names": ["mood"]}),
        ("{queue}/items", {}),
        ("{queue}/items", {"ids": []}),
        ("{queue}/next", {"besides": 1, "x": 2}),
        ("{queue}/dataset", {}),
        ("{queue}/ask-skipped", {}),
        ("{queue}/ask-skipped", {"whom": "nobody"}),
        ("{review}/submit", {}),
        ("{review}/submit", {"answers": []}),
        ("{review}/submit", {"answers": {}}),
        ("{review}/submit", {"answers": {"reward": 1}}),
        ("{review}/submit", {"answers": {"reward": {"value": 7}}}),
        ("{review}/submit", {"answers": {"reward": {"value": 1}}, "seconds": -1}),
        ("{review}/skip", {"reason": "x" * 401}),
        ("{review}/requeue", {"why": "x"}),
        ("{item}/decide", {}),
    ],
)
def test_a_bad_body_is_refused(
    mates: APIClient, trainers: APIClient, url: str, review: str, item: str, path: str, body: dict[str, Any]
) -> None:
    client = mates if "review" in path else trainers
    address = path.format(queue=url, review=review, item=item) or f"{QUEUES}?project=shop"
    answer = client.post(address, body)
    assert (answer.status_code, bool(answer.json()["detail"])) == (400, True)
    assert Review.objects.get().state == "held"


READS = ["{queue}", "{queue}/items", "{queue}/results", "{queue}/events", "{item}", "{review}"]
WRITES = [
    ("{queue}/items", {"ids": ["x"]}),
    ("{queue}/next", {}),
    ("{queue}/dataset", {"dataset": "x"}),
    ("{queue}/ask-skipped", {"whom": "me"}),
    ("{queue}/close-stuck", {}),
    ("{item}/ask-again", {}),
    ("{item}/decide", {"answers": {}}),
    ("{item}/take-back", {}),
    ("{review}/submit", SAID),
    ("{review}/skip", {}),
    ("{review}/requeue", {}),
    ("{review}/undo", {}),
]


def test_who_may_read(
    anonymous_client: APIClient,
    other_client: APIClient,
    client_of: Login,
    stranger: User,
    viewer: User,
    url: str,
    review: str,
    item: str,
) -> None:
    for path in READS:
        address = path.format(queue=url, review=review, item=item)
        assert anonymous_client.get(address).status_code == 401
        for client in (other_client, client_of(stranger)):
            assert client.get(address).status_code == 404, address
        assert client_of(stranger).put(address, {}).status_code == 405
    looks = client_of(viewer)
    assert looks.get(f"{QUEUES}?project=shop").status_code == 200
    assert looks.get(url).status_code == 200
    assert looks.get(f"{url}/results").status_code == 403
    assert anonymous_client.get(QUEUES).status_code == 401
    assert client_of(stranger).get(f"{QUEUES}?project=shop").status_code == 404
    assert other_client.get(QUEUES).json()["items"] == []


def test_who_may_write(
    anonymous_client: APIClient,
    other_client: APIClient,
    key_client: APIClient,
    client_of: Login,
    stranger: User,
    viewer: User,
    second: User,
    url: str,
    review: str,
    item: str,
) -> None:
    for path, body in WRITES:
        address = path.format(queue=url, review=review, item=item)
        assert anonymous_client.post(address, body).status_code == 401
        for client in (other_client, client_of(stranger)):
            assert client.post(address, body).status_code == 404, address
        assert client_of(viewer).post(address, body).status_code in {403, 404}, address
        assert client_of(second).delete(address).status_code == 405
        if "{review}" in path:  # another person's
            assert client_of(second).post(address, body).status_code == 404
    assert key_client.post(f"{url}/next").status_code == 403
    for client in (key_client, client_of(second)):
        assert client.post(f"{QUEUES}?project=shop", {"name": "x"}).status_code == 403
        assert client.patch(url, {"name": "x"}).status_code == 403
        assert client.patch(url, {"state": "paused"}).status_code == 403
    for path, body in (("ask-skipped", {"whom": "everybody"}), ("close-stuck", {})):
        for client in (key_client, client_of(second)):
            assert client.post(f"{url}/{path}", body).status_code == 403
    assert key_client.post(f"{url}/ask-skipped", {"whom": "me"}).status_code == 403
    for path in ("decide", "take-back"):
        assert client_of(second).post(f"{item}/{path}", {"answers": {}}).status_code == 403
    assert Review.objects.get().state == "held"


def test_what_is_missing_is_404(trainers: APIClient, mates: APIClient, queue: ReviewQueue) -> None:
    for missing in ("nonsense", "%00", new_id("queue"), new_id("item"), new_id("revw")):
        for path in READS:
            address = path.format(
                queue=f"{QUEUES}/{missing}", review=f"/api/v1/reviews/{missing}", item=f"/api/v1/review-items/{missing}"
            )
            assert mates.get(address).status_code == 404
        assert trainers.post(f"{QUEUES}/{queue.pk}/dataset", {"dataset": missing}).status_code == 404
        assert trainers.post(f"{QUEUES}/{missing}/ask-skipped", {"whom": "me"}).status_code == 404
        assert trainers.post(f"{QUEUES}/{missing}/close-stuck").status_code == 404
    assert mates.get(f"{QUEUES}/{queue.pk}/items", {"state": "odd"}).status_code == 400
    assert mates.get(f"{QUEUES}/{queue.pk}/events", {"since": "x"}).status_code == 400
