"""The sockets of a project's open pages: news of what changed, never the data itself, and a review queue's events.

All of them speak alike. `?since=<number>` is the last message that a page has; the server says hello with the newest
number, sends what was missed, then what comes. A page that was away asks from its number: a lost notice loses nothing.
"""

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer

from apps.accounts.access import Caller, find_project
from apps.accounts.models import Project, User
from apps.core.errors import ServiceError
from apps.core.ids import is_id
from apps.core.live import find_newest, list_news, project_group
from apps.feedback.queues.events import list_events
from apps.feedback.queues.models import ReviewQueue

REFUSED = 4404
Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ProjectFeed:
    """A project's news, `{"number", "kind", "id"}`; of the kind "gap": some is lost, ask for everything anew."""

    project_id: str
    newest: int

    def read(self, since: int) -> list[Message]:
        """Return what comes after number `since`."""
        return [asdict(news) for news in list_news(self.project_id, since=since)]

    def has_more(self, notice: Message, since: int) -> bool:
        """Say whether a notice of the group tells of something that was not sent yet."""
        return bool(notice["number"] > since)


@dataclass(frozen=True, kw_only=True)
class QueueFeed:
    """A review queue's events, `{"number", "kind", "item", "actor"}`."""

    project_id: str
    queue_id: str
    newest: int

    def read(self, since: int) -> list[Message]:
        """Return what comes after number `since`."""
        events = list_events(self.queue_id, since=since)
        return [{name: getattr(event, name) for name in ("number", "kind", "item", "actor")} for event in events]

    def has_more(self, notice: Message, _since: int) -> bool:
        """Say whether a notice of the group is about this queue."""
        return notice["kind"] == "queue" and self.queue_id in notice["ids"]


class FeedConsumer(AsyncJsonWebsocketConsumer):
    """`ws/p/<slug>/news` and `ws/p/<slug>/queue/<id>`, for members of the project's team."""

    feed: ProjectFeed | QueueFeed | None = None
    since = 0

    async def connect(self) -> None:
        user, named = self.scope.get("user"), self.scope["url_route"]["kwargs"]
        self.feed = await database_sync_to_async(_open_feed)(user, **named)
        await self.accept()
        if self.feed is None:
            await self.close(code=REFUSED)  # After accepting, so that the page learns the code and does not try again.
            return
        given = parse_qs(self.scope["query_string"].decode(errors="replace")).get("since", [""])[0]
        self.since = int(given) if given.isdecimal() and len(given) < 18 else self.feed.newest
        await self.channel_layer.group_add(project_group(self.feed.project_id), self.channel_name)
        await self.send_json({"kind": "hello", "number": self.feed.newest})
        await self._send_new(self.feed)

    async def disconnect(self, _code: int) -> None:
        if self.feed is not None:
            await self.channel_layer.group_discard(project_group(self.feed.project_id), self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_more: Any) -> None:
        """Pages have nothing to say here; whatever comes is left unread."""

    async def news(self, notice: Message) -> None:
        """`apps.core.live` tells of something newer: read on."""
        if self.feed is not None and self.feed.has_more(notice, self.since):
            await self._send_new(self.feed)

    async def _send_new(self, feed: ProjectFeed | QueueFeed) -> None:
        while messages := await database_sync_to_async(self._read)(feed):
            for message in messages:
                self.since = message["number"]
                await self.send_json(message)
        if messages is None:
            self.feed = None
            await self.channel_layer.group_discard(project_group(feed.project_id), self.channel_name)
            await self.close(code=REFUSED)

    def _read(self, feed: ProjectFeed | QueueFeed) -> list[Message] | None:
        """Return what comes next, None for who is no member any more: people are taken out of a team while pages of
        theirs are open."""
        is_member = _find_project(self.scope.get("user"), self.scope["url_route"]["kwargs"]["slug"]) is not None
        return feed.read(self.since) if is_member else None


class NowhereConsumer(AsyncWebsocketConsumer):
    """Every other address: the handshake is refused (403) rather than answered with a fault of ours."""

    async def connect(self) -> None:
        await self.close()


def _open_feed(user: object, slug: str, queue_id: str | None = None) -> ProjectFeed | QueueFeed | None:
    project = _find_project(user, slug)
    if project is None:
        return None
    if queue_id is None:
        return ProjectFeed(project_id=project.pk, newest=find_newest(project.pk) or 0)
    queue = ReviewQueue.objects.filter(project=project, pk=queue_id).first() if is_id(queue_id, "queue") else None
    if queue is None:
        return None
    return QueueFeed(project_id=project.pk, queue_id=queue.pk, newest=queue.n_events)


def _find_project(user: object, slug: str) -> Project | None:
    if not isinstance(user, User):
        return None
    try:
        return find_project(Caller(user=user), slug)
    except ServiceError:
        return None
