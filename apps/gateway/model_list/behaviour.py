"""Which names a key sees. Knows no HTTP."""

from apps.gateway.routes import KeyRoute, RouteBook, VersionRoute


def list_models(routes: RouteBook, key: KeyRoute) -> dict[str, VersionRoute]:
    """Return the names of the key's project and what they mean now."""
    policy = routes.snapshot.policies.get(key.project_id)
    return policy.names() if policy else {}
