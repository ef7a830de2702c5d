"""The socket of a review queue: events have numbers, and what was missed is sent from the number that a page has."""

from collections.abc import Callable

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from apps.accounts.access import Caller
from apps.accounts.models import Membership, Project, User
from apps.accounts.services import remove_member
from apps.console.consumers import REFUSED
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import ReviewQueue
from apps.feedback.queues.services import create_queue
from tests.apps.console.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)
BrowserOf = Callable[[User], Client]
Dial = Callable[..., Socket]


@pytest.fixture
def queue(project: Project, trainer: User) -> ReviewQueue:
    """A queue in which three things have happened."""
    queue = create_queue(caller=Caller(user=trainer), project=project, settings={"name": "x"})
    for kind in ("taken", "submitted"):
        record_event(queue, kind=kind, item_id="item_1", actor="somebody")
    return queue


async def open_socket(dial: Dial, browser: Client, queue: ReviewQueue, *, since: str = "") -> Socket:
    socket = dial(browser, "shop", path=f"/ws/p/shop/queue/{queue.pk}", query=f"since={since}" if since else "")
    assert (await socket.open())["type"] == "websocket.accept"
    return socket


async def test_what_was_missed_is_sent_and_then_what_comes(
    queue: ReviewQueue, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    socket = await open_socket(dial, await sync_to_async(browser_of)(viewer), queue, since="1")
    assert await socket.hear() == {"kind": "hello", "number": 3}
    assert [(await socket.hear())["number"] for _ in range(2)] == [2, 3]
    await sync_to_async(record_event)(queue, kind="skipped")
    assert await socket.hear() == {"number": 4, "kind": "skipped", "item": "", "actor": ""}


async def test_without_a_number_only_what_comes_is_sent(
    queue: ReviewQueue, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    socket = await open_socket(dial, await sync_to_async(browser_of)(viewer), queue, since="x")
    await socket.hear()
    await sync_to_async(record_event)(queue, kind="skipped")
    assert (await socket.hear())["number"] == 4


async def test_who_is_taken_out_of_the_team_hears_no_more(
    queue: ReviewQueue, owner: User, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    socket = await open_socket(dial, await sync_to_async(browser_of)(viewer), queue)
    await socket.hear()
    member = await sync_to_async(Membership.objects.select_related("team").get)(user=viewer)
    await sync_to_async(remove_member)(member, actor="somebody")
    await sync_to_async(record_event)(queue, kind="skipped")
    assert await socket.receive() == {"type": "websocket.close", "code": REFUSED}


async def test_strangers_and_other_queues_are_refused(
    queue: ReviewQueue, stranger: User, owner: User, browser_of: BrowserOf, dial: Dial
) -> None:
    for user, slug, number in (
        (stranger, "shop", queue.pk),
        (stranger, "elsewhere", queue.pk),
        (owner, "shop", "x"),
        (owner, "shop", "%00"),
    ):
        browser = await sync_to_async(browser_of)(user)
        socket = dial(browser, slug, path=f"/ws/p/{slug}/queue/{number}")
        await socket.open()
        assert await socket.receive() == {"type": "websocket.close", "code": REFUSED}
