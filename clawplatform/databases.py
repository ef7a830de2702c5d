"""Turns DATABASE_URL and REDIS_URL, or the embedded servers' sockets, into what each library wants."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from clawplatform.env import Env
from worker.host.sockets import postgres_socket_dir, valkey_socket

EMBEDDED_DATABASE = "claw"
EMBEDDED_USER = "postgres"


def read_database(env: Env) -> dict[str, Any]:
    """Return Django's DATABASES entry."""
    if not env.database_url:
        return _entry(name=EMBEDDED_DATABASE, user=EMBEDDED_USER, host=str(postgres_socket_dir(env.data_dir)))
    parts = urlsplit(env.database_url)
    options = dict(parse_qsl(parts.query))
    return _entry(
        name=unquote(parts.path.lstrip("/")),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        host=options.pop("host", parts.hostname or ""),
        port=str(parts.port or ""),
        options=options,
    )


def _entry(
    *, name: str, user: str, host: str, password: str = "", port: str = "", options: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": user,
        "PASSWORD": password,
        "HOST": host,
        "PORT": port,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options or {},
    }


def read_redis_url(env: Env) -> str:
    """Return the address for redis-py and channels-redis (`unix://…` for the embedded server)."""
    return env.redis_url or f"unix://{valkey_socket(env.data_dir)}"


def broker_url(redis_url: str) -> str:
    """Return the same address as Celery's transport spells it."""
    return redis_url.replace("unix://", "redis+socket://", 1) if redis_url.startswith("unix://") else redis_url
