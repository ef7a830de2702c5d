"""How often thumbs may be given: for a token, and for one address with it. Counted in Valkey, by the minute.

While Valkey is away thumbs are taken without limits, as model calls are; the log says so.
"""

import time

import redis
import structlog
from django.conf import settings

from apps.core.errors import TooMany

log = structlog.get_logger(__name__)

PER_ADDRESS = 30  # a minute: a person does not judge faster
_MINUTE = 60


def count_thumb(token_id: str, *, per_minute: int, address: str) -> None:
    """Count one. Raises TooMany, which says when to come again."""
    now = time.time()
    minute = int(now // _MINUTE)
    keys = {f"claw:thumbs:{token_id}:{minute}": per_minute, f"claw:thumbs:{token_id}:{address}:{minute}": PER_ADDRESS}
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2) as client:
            counts = _count(client, list(keys))
    except (OSError, redis.RedisError) as error:
        log.warning("thumbs.uncounted", token=token_id, error=str(error))
        return
    if any(count > limit for count, limit in zip(counts, keys.values(), strict=True)):
        raise TooMany(
            "too many thumbs in this minute; try again in the next", retry_after_s=_MINUTE - int(now % _MINUTE)
        )


def _count(client: redis.Redis, keys: list[str]) -> list[int]:
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.incr(key)
            pipe.expire(key, 2 * _MINUTE)
        answers = pipe.execute()
    return [int(answer) for answer in answers[::2]]
