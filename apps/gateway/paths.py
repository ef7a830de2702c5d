"""Which requests are the gateway's, however a client spells its base URL, and in whose shapes the client reads.

With /v1, without, with it twice, and each below a trajectory's own address. Knows no endpoint's behaviour.
"""

import re

from starlette.requests import HTTPConnection
from starlette.types import Scope

from apps.gateway.health import HEALTH_PATHS

_SLASHES = re.compile("/{2,}")
_FAMILIES = ("chat/completions", "completions", "embeddings", "messages", "models", "responses")
_HELLO = "/api/hello"  # Claude Code asks for it before its first call
_TRAJECTORY = "/t/"
_MESSAGES = "/v1/messages"


def find_gateway_scope(scope: Scope) -> Scope | None:
    """Return the scope with the path under which the gateway's table has it, None when the request is not for it."""
    path: str = scope["path"]
    if "//" in path:  # the base URL ended in a slash
        path = _SLASHES.sub("/", path)
    if path.startswith(_TRAJECTORY):
        trajectory_id, _, rest = path.removeprefix(_TRAJECTORY).partition("/")
        below = find_inner_path(f"/{rest}") or f"/{rest}"
        return {**_move(scope, below), "claw.trajectory_id": trajectory_id}
    if path == "/":
        return _move(scope, path) if scope["method"] == "HEAD" else None  # a person's browser asks by GET
    inner = find_inner_path(path)
    if inner is None:
        return None
    return scope if inner == scope["path"] else _move(scope, inner)


def find_inner_path(path: str) -> str | None:
    """Return the path in its full spelling, None for one that no client of a model takes."""
    if path in HEALTH_PATHS or path == _HELLO:
        return path
    if path == "/v1" or path.startswith("/v1/"):
        while path.startswith("/v1/v1/"):
            path = path.removeprefix("/v1")
        return path
    is_known = any(path == f"/{family}" or path.startswith(f"/{family}/") for family in _FAMILIES)
    return f"/v1{path}" if is_known else None


def speaks_anthropic(request: HTTPConnection) -> bool:
    """Whether the client reads Anthropic's shapes."""
    return request.scope["path"].startswith(_MESSAGES) or "anthropic-version" in request.headers


def _move(scope: Scope, path: str) -> Scope:
    return {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogatepass")}
