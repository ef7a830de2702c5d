"""What stands before every view: an id, by which error page, log line and answer are matched; a look at the path."""

from collections.abc import Callable

import structlog
from django.http import Http404, HttpRequest, HttpResponse

from apps.core.ids import new_id


class RequestIdMiddleware:
    """Sets `request.request_id`, the log context and the `X-Request-Id` header."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = new_id("req")
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class AddressMiddleware:
    """Nothing lives at an address with a NUL in it; Postgres would refuse to look."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "\x00" in request.path_info:
            raise Http404
        return self.get_response(request)
