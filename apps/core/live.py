"""News for open pages: "there is something newer about X". Carries no data; a page that hears it asks the server.

The Channels layer may lose a message, so pages also ask when they reconnect.
"""

from collections.abc import Mapping

import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.db import transaction
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


def project_group(project_id: str) -> str:
    """Name of the group that hears of everything in a project."""
    return f"project.{project_id}"


def publish_news(project_id: str, *, kind: str, object_id: str) -> None:
    """After commit, tell open pages of the project that an object ("trajectory", "run", "version") is newer."""
    publish_many({object_id: project_id}, kind=kind)


def publish_many(objects: Mapping[str, str], *, kind: str) -> None:
    """After commit, tell of several objects (id → project). Each sending costs a connection, so many go by one."""
    if objects:
        transaction.on_commit(lambda: _send(objects, kind=kind))


def _send(objects: Mapping[str, str], *, kind: str) -> None:
    layer = get_channel_layer()
    if layer is None:
        return

    async def send_all() -> None:
        for object_id, project_id in objects.items():
            await layer.group_send(project_group(project_id), {"type": "news", "kind": kind, "id": object_id})

    try:
        async_to_sync(send_all)()
    except (OSError, RedisError) as error:  # Valkey is away: pages catch up later, and writers must not fail for it.
        log.warning("live.unsent", kind=kind, object_ids=list(objects), error=str(error))
