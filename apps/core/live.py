"""News for open pages: "there is something newer about X". Carries no data; a page that hears it asks the server.

The Channels layer may lose a message, so pages also ask when they reconnect.
"""

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
    transaction.on_commit(lambda: _send(project_id, kind=kind, object_id=object_id))


def _send(project_id: str, *, kind: str, object_id: str) -> None:
    layer = get_channel_layer()
    if layer is None:
        return
    message = {"type": "news", "kind": kind, "id": object_id}
    try:
        async_to_sync(layer.group_send)(project_group(project_id), message)
    except (OSError, RedisError) as error:  # Valkey is away: pages catch up later, and writers must not fail for it.
        log.warning("live.unsent", kind=kind, object_id=object_id, error=str(error))
