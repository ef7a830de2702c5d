"""Which names a key sees. Knows no HTTP."""

from apps.gateway.routes import KeyRoute, RouteBook, VersionRoute


def list_models(routes: RouteBook, key: KeyRoute) -> dict[str, VersionRoute]:
    """Return the names of the key's project and what they mean now."""
    return routes.snapshot.names(key.project_id)
