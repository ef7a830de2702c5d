"""Addresses of the console's sockets."""

from typing import Any

websocket_urlpatterns: list[Any] = []
