"""How model names are shown, in OpenAI's shape or Anthropic's, plus the version that each means now."""

from datetime import UTC, datetime

from apps.gateway.dialect import Json
from apps.gateway.routes import VersionRoute


def render_openai_card(name: str, version: VersionRoute) -> Json:
    """Return one model's card."""
    return {
        "id": name,
        "object": "model",
        "created": version.created,
        "owned_by": "claw-platform",
        "version": version.label,
    }


def render_openai_list(names: dict[str, VersionRoute]) -> Json:
    return {"object": "list", "data": [render_openai_card(name, version) for name, version in names.items()]}


def render_anthropic_card(name: str, version: VersionRoute) -> Json:
    """Return one model's card."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(version.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "version": version.label,
    }


def render_anthropic_list(names: dict[str, VersionRoute]) -> Json:
    """Return all names as the only page."""
    cards = [render_anthropic_card(name, version) for name, version in names.items()]
    ends = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
    return {"data": cards, "has_more": False, "first_id": ends[0], "last_id": ends[1]}
