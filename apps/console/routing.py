"""Addresses of the console's sockets."""

from typing import Any

from django.urls import path, re_path

from apps.console.consumers import FeedConsumer, NowhereConsumer

websocket_urlpatterns: list[Any] = [
    path("ws/p/<slug:slug>/news", FeedConsumer.as_asgi()),  # type: ignore[arg-type]  # the stubs know views only
    path("ws/p/<slug:slug>/queue/<str:queue_id>", FeedConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path(r"", NowhereConsumer.as_asgi()),  # type: ignore[arg-type]
]
