"""How often a password may be tried. Failures are counted in Valkey, over all web processes; without it none is.

Knows no form and no password: only whom was tried, and from where. Why no django-axes: its cache handler has one limit
where there are two here, reads and writes a count in two steps, needs a cache that all processes share, fails the
log-in while that is away, and has three tables come along.
"""

import hashlib

import redis
import structlog
from django.conf import settings

log = structlog.get_logger(__name__)

WINDOW_S = 900
FROM_ONE_ADDRESS = 10  # failures at one account, from one address, in WINDOW_S
FROM_ANYWHERE = 100  # at one account, so that guessing from many addresses has an end too


def seconds_to_wait(email: str, address: str) -> int:
    """Return how long this account may not be tried from this address, 0 when it may."""
    waits = []
    try:
        with _connect() as client:
            for name, most in _counters(email, address).items():
                if int(client.get(name) or 0) >= most:
                    waits.append(max(int(client.ttl(name)), 1))
    except (OSError, redis.RedisError) as error:
        log.warning("attempts.uncounted", error=str(error))
    return max(waits, default=0)


def note_failure(email: str, address: str) -> None:
    """Count one more failure; the first one begins the time in which they count."""
    try:
        with _connect() as client, client.pipeline() as both:  # one step: no count is left without an end
            for name in _counters(email, address):
                both.incr(name).expire(name, WINDOW_S, nx=True)
            both.execute()
    except (OSError, redis.RedisError) as error:
        log.warning("attempts.uncounted", error=str(error))
    log.info("login.failed", address=address)


def forget_failures(email: str, address: str) -> None:
    """The person is in: what was mistyped before is forgotten at this address."""
    try:
        with _connect() as client:
            client.delete(next(iter(_counters(email, address))))
    except (OSError, redis.RedisError) as error:
        log.warning("attempts.uncounted", error=str(error))


def _connect() -> "redis.Redis":
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)


def _counters(email: str, address: str) -> dict[str, int]:
    """Return the names of what is counted, and how much is too much. No e-mail address stands in them."""
    account = hashlib.sha256(email.lower().encode(errors="replace")).hexdigest()[:32]
    return {f"claw:attempts:{account}:{address}": FROM_ONE_ADDRESS, f"claw:attempts:{account}": FROM_ANYWHERE}
