"""The socket: members hear news, strangers and passers-by do not."""

from collections.abc import Callable

import pytest
from asgiref.sync import sync_to_async
from django.test import Client

from apps.accounts.models import Project, User
from apps.console.consumers import REFUSED
from apps.core.live import find_newest, publish_many, publish_news
from tests.apps.console.sockets import Socket

pytestmark = pytest.mark.django_db(transaction=True)
BrowserOf = Callable[[User], Client]
Dial = Callable[..., Socket]


async def test_members_hear_of_what_changes(project: Project, viewer: User, browser_of: BrowserOf, dial: Dial) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "shop")
    assert (await socket.open())["type"] == "websocket.accept"
    assert await socket.hear() == {"kind": "hello", "number": 0}
    await sync_to_async(publish_news)(project.id, kind="run", object_id="run_1")
    news = await socket.hear()
    assert news == {"number": await sync_to_async(find_newest)(project.id), "kind": "run", "id": "run_1"}


async def test_what_a_page_missed_is_sent_from_its_number_on(
    project: Project, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    await sync_to_async(publish_many)({"traj_1": project.id, "traj_2": project.id}, kind="trajectory")
    newest = await sync_to_async(find_newest)(project.id)
    assert newest is not None
    socket = dial(await sync_to_async(browser_of)(viewer), "shop", query=f"since={newest - 1}")
    await socket.open()
    assert await socket.hear() == {"kind": "hello", "number": newest}
    assert await socket.hear() == {"number": newest, "kind": "trajectory", "id": "traj_2"}
    await sync_to_async(publish_news)(project.id, kind="run", object_id="run_1")
    assert (await socket.hear())["number"] == newest + 1


async def test_what_is_lost_is_told_as_a_gap(project: Project, viewer: User, browser_of: BrowserOf, dial: Dial) -> None:
    await sync_to_async(publish_news)(project.id, kind="run", object_id="run_1")
    newest = await sync_to_async(find_newest)(project.id)
    socket = dial(await sync_to_async(browser_of)(viewer), "shop", query="since=7")
    await socket.open()
    await socket.hear()
    assert await socket.hear() == {"number": newest, "kind": "gap", "id": ""}
    assert await socket.line.receive_nothing(timeout=0.3)


def test_a_page_knows_from_which_number_on_it_listens(project: Project, viewer: User, browser_of: BrowserOf) -> None:
    publish_news(project.id, kind="run", object_id="run_1")
    page = browser_of(viewer).get("/p/shop/trajectories")
    assert f'data-news="/ws/p/shop/news" data-since="{find_newest(project.id)}"' in page.content.decode()


async def test_a_quiet_socket_stays_open(project: Project, viewer: User, browser_of: BrowserOf, dial: Dial) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "shop")
    await socket.open()
    await socket.hear()
    assert await socket.line.receive_nothing(timeout=6)  # the channel layer asks Redis for 5 s at a time
    await sync_to_async(publish_news)(project.id, kind="run", object_id="run_1")
    assert (await socket.hear())["id"] == "run_1"


async def test_what_a_page_says_is_left_unread(
    project: Project, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "shop")
    await socket.open()
    await socket.hear()
    for frame in ({"text": "no JSON"}, {"bytes": b"\xff"}, {"text": "{}"}):
        await socket.line.send_input({"type": "websocket.receive", **frame})
    await sync_to_async(publish_news)(project.id, kind="run", object_id="run_1")
    assert (await socket.hear())["id"] == "run_1"


@pytest.mark.parametrize("path", ["/ws/nowhere", "/v1/chat/completions", "/"])
async def test_other_addresses_take_no_sockets(viewer: User, browser_of: BrowserOf, path: str, dial: Dial) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "", path=path)
    assert (await socket.open())["type"] == "websocket.close"


async def test_news_of_other_projects_stays_there(
    project: Project, other_project: Project, viewer: User, browser_of: BrowserOf, dial: Dial
) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "shop")
    await socket.open()
    await socket.hear()
    await sync_to_async(publish_news)(other_project.id, kind="run", object_id="run_1")
    assert await socket.line.receive_nothing(timeout=0.3)


async def test_strangers_are_refused(project: Project, stranger: User, browser_of: BrowserOf, dial: Dial) -> None:
    socket = dial(await sync_to_async(browser_of)(stranger), "shop")
    await socket.open()
    assert (await socket.receive())["code"] == REFUSED


async def test_one_must_be_logged_in(project: Project, dial: Dial) -> None:
    socket = dial(Client(), "shop")
    await socket.open()
    assert (await socket.receive())["code"] == REFUSED


async def test_other_sites_are_refused(project: Project, viewer: User, browser_of: BrowserOf, dial: Dial) -> None:
    socket = dial(await sync_to_async(browser_of)(viewer), "shop", origin="http://evil.example")
    assert (await socket.open())["type"] == "websocket.close"
