"""Text completions over HTTP."""

from apps.gateway.completions.behaviour import CompletionDialect
from apps.gateway.desk import Desk
from apps.gateway.endpoint import ModelEndpoint


def make_completion_endpoint(desk: Desk) -> ModelEndpoint:
    """Return `POST /v1/completions` as an ASGI application."""
    return ModelEndpoint(desk, CompletionDialect())
