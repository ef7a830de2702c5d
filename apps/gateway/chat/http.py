"""Chat completions over HTTP."""

from apps.gateway.chat.behaviour import ChatDialect
from apps.gateway.desk import Desk
from apps.gateway.endpoint import ModelEndpoint


def make_chat_endpoint(desk: Desk) -> ModelEndpoint:
    """Return `POST /v1/chat/completions` as an ASGI application."""
    return ModelEndpoint(desk, ChatDialect())
