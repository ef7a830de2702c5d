"""How a model's name is shown, in OpenAI's shape plus the version that it means now."""

from typing import Any

from apps.gateway.routes import VersionRoute


def render_model(name: str, version: VersionRoute) -> dict[str, Any]:
    """Return one model card."""
    return {
        "id": name,
        "object": "model",
        "created": version.created,
        "owned_by": "claw-platform",
        "version": version.label,
    }
