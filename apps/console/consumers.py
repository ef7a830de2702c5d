"""The sockets of a project's open pages: news of what changed, never the data itself; a queue's numbered events."""

from typing import Any
from urllib.parse import parse_qs

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer

from apps.accounts.access import Caller, find_project
from apps.accounts.models import Project, User
from apps.core.errors import ServiceError
from apps.core.live import project_group
from apps.feedback.queues.events import list_events
from apps.feedback.queues.models import ReviewQueue

REFUSED = 4404


class NewsConsumer(AsyncJsonWebsocketConsumer):
    """`ws/p/<slug>/news`: sends `{"kind", "id"}` to members of the project's team."""

    group = ""

    async def connect(self) -> None:
        project = await database_sync_to_async(_find)(self.scope.get("user"), self.scope["url_route"]["kwargs"]["slug"])
        await self.accept()
        if project is None:
            await self.close(code=REFUSED)  # After accepting, so that the page learns the code and does not try again.
            return
        self.group = project_group(project.id)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.send_json({"kind": "hello", "id": project.id})

    async def disconnect(self, _code: int) -> None:
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_more: Any) -> None:
        """Pages have nothing to say here; whatever comes is left unread."""

    async def news(self, event: dict[str, Any]) -> None:
        """Forward one message of `apps.core.live`."""
        await self.send_json({"kind": event["kind"], "id": event["id"]})


class QueueConsumer(AsyncJsonWebsocketConsumer):
    """`ws/p/<slug>/queue/<id>?since=<n>`: sends a review queue's events after number n, then those that come.

    Each is `{"number", "kind", "item", "actor"}`, numbers without gaps: read from the table, so a lost notice loses
    nothing, and a page that was away asks from the number that it has.
    """

    group = ""
    queue_id = ""
    since = 0

    async def connect(self) -> None:
        kwargs = self.scope["url_route"]["kwargs"]
        queue = await database_sync_to_async(_find_queue)(self.scope.get("user"), kwargs["slug"], kwargs["queue_id"])
        await self.accept()
        if queue is None:
            await self.close(code=REFUSED)
            return
        given = parse_qs(self.scope["query_string"].decode(errors="replace")).get("since", [""])[0]
        self.since = int(given) if given.isdecimal() and len(given) < 18 else queue.n_events
        self.queue_id, self.group = queue.pk, project_group(queue.project_id)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.send_json({"kind": "hello", "number": queue.n_events})
        await self._send_new()

    async def disconnect(self, _code: int) -> None:
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None, **_more: Any) -> None:
        """Pages have nothing to say here either."""

    async def news(self, event: dict[str, Any]) -> None:
        """The queue has newer events: read them."""
        if event["kind"] == "queue" and event["id"] == self.queue_id:
            await self._send_new()

    async def _send_new(self) -> None:
        while events := await database_sync_to_async(list_events)(self.queue_id, since=self.since):
            for event in events:
                self.since = event.number
                shown = {"number": event.number, "kind": event.kind, "item": event.item, "actor": event.actor}
                await self.send_json(shown)


class NowhereConsumer(AsyncWebsocketConsumer):
    """Every other address: the handshake is refused (403) rather than answered with a fault of ours."""

    async def connect(self) -> None:
        await self.close()


def _find_queue(user: object, slug: str, queue_id: str) -> ReviewQueue | None:
    project = _find(user, slug)
    if project is None:
        return None
    return ReviewQueue.objects.filter(project=project, pk=queue_id).first()


def _find(user: object, slug: str) -> Project | None:
    if not isinstance(user, User):
        return None
    try:
        return find_project(Caller(user=user), slug)
    except ServiceError:
        return None
