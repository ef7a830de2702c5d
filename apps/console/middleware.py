"""What stands before every view: an id, by which error page, log line and answer are matched; a look at the path."""

from collections.abc import Callable

import structlog
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse

from apps.console.replies import render_error
from apps.core.ids import new_id

RETRY_AFTER_S = 5
# Connection exceptions, too many connections, and the server's shutting down or starting.
_NO_CONNECTION = ("08", "53300", "57P")
log = structlog.get_logger(__name__)


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


class DatabaseAwayMiddleware:
    """Answers 503 and when to try again, at every door, where a view met no database. Other faults pass by."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Django's hook for what a view raises; REST's views raise on what they know no problem for."""
        if not isinstance(error, (OperationalError, InterfaceError)) or not _is_of_connection(error):
            return None
        log.warning("database_away", path=request.path, error=str(error))
        response = render_error(request, status=503, detail="The database does not answer. Try again in a few seconds.")
        response["Retry-After"] = str(RETRY_AFTER_S)
        return response


def _is_of_connection(error: Exception) -> bool:
    """Say whether there was no connection, or it was lost: Postgres gave no code, or one of those for that."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or state.startswith(_NO_CONNECTION)
