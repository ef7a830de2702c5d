"""Notices between processes over Redis: "what you cached is old". A lost notice costs seconds, never correctness:
whoever caches also re-reads on a timer."""

import redis
import structlog
from django.conf import settings
from django.db import transaction

log = structlog.get_logger(__name__)

CHANNEL = "claw:notices"
ROUTES_CHANGED = "routes-changed"  # keys, aliases, versions, deployments or engines


def notify_processes(notice: str) -> None:
    """After commit, tell every process that listens on CHANNEL."""
    transaction.on_commit(lambda: _send(notice))


def _send(notice: str) -> None:
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            client.publish(CHANNEL, notice)
    except (OSError, redis.RedisError) as error:
        log.warning("notice.unsent", notice=notice, error=str(error))
