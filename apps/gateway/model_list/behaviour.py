"""Which names a key sees. Knows no HTTP."""

from typing import Any

from apps.gateway.errors import unknown_model
from apps.gateway.model_list.shapes import render_model
from apps.gateway.routes import KeyRoute, RouteBook


def list_models(routes: RouteBook, key: KeyRoute) -> dict[str, Any]:
    """Return the names of the key's project."""
    policy = routes.snapshot.policies.get(key.project_id)
    names = policy.names() if policy else {}
    return {"object": "list", "data": [render_model(name, version) for name, version in names.items()]}


async def describe_model(routes: RouteBook, key: KeyRoute, name: str) -> dict[str, Any]:
    """Return one name's card, also for `slug@v3`; raises ApiError (404)."""
    version = await routes.find_version(key.project_id, name)
    if version is None:
        policy = routes.snapshot.policies.get(key.project_id)
        raise unknown_model(name, known=list(policy.names()) if policy else [])
    return render_model(name, version)
