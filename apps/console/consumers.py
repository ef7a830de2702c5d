"""The socket of a project's open pages: forwards news of what changed, never the data itself."""

from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer, AsyncWebsocketConsumer

from apps.accounts.access import Caller, find_project
from apps.accounts.models import Project, User
from apps.core.errors import ServiceError
from apps.core.live import project_group

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


class NowhereConsumer(AsyncWebsocketConsumer):
    """Every other address: the handshake is refused (403) rather than answered with a fault of ours."""

    async def connect(self) -> None:
        await self.close()


def _find(user: object, slug: str) -> Project | None:
    if not isinstance(user, User):
        return None
    try:
        return find_project(Caller(user=user), slug)
    except ServiceError:
        return None
