"""Addresses of the console's sockets."""

from typing import Any

from django.urls import path

from apps.console.consumers import NewsConsumer

websocket_urlpatterns: list[Any] = [
    path("ws/p/<slug:slug>/news", NewsConsumer.as_asgi()),  # type: ignore[arg-type]  # the stubs know views only
]
