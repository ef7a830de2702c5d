"""Pages for what no view could answer. Each says what to do next and under which id we logged it."""

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponsePermanentRedirect
from django.urls import is_valid_path

from apps.console.replies import render_error


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    detail = "The address or the form could not be read. Go back and try again."
    if isinstance(exception, DisallowedHost):
        detail = (
            "The platform does not answer under the host name of this address. Whoever runs it can allow the name: "
            "in CLAW_BASE_URL, if that is the public address, else in CLAW_ALLOWED_HOSTS; then start it again."
        )
    return render_error(request, status=400, detail=detail)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 (Django names it)
    return render_error(request, status=403, detail="Your account may not open this. Ask an owner of the team.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:  # noqa: ARG001 (Django names it)
    if address := _without_slash(request):
        return HttpResponsePermanentRedirect(address)
    detail = "Nothing lives at this address, or it belongs to a team that you are not in."
    return render_error(request, status=404, detail=detail)


def _without_slash(request: HttpRequest) -> str:
    """Return the address of the page that is meant where a slash too many ends it, "" where there is none."""
    if request.method not in {"GET", "HEAD"} or not is_valid_path(request.path_info.rstrip("/")):
        return ""
    path, mark, query = request.get_full_path().partition("?")
    return f"{path.rstrip('/')}{mark}{query}" if path.endswith("/") else ""


def server_error(request: HttpRequest) -> HttpResponse:
    detail = (
        "Try once more. If it fails again, tell whoever runs the platform the request id below: the log has the cause."
    )
    return render_error(request, status=500, detail=detail)


def csrf_failed(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF_FAILURE_VIEW."""
    detail = f"The form was open for too long, or cookies are blocked. Go back, reload, and send it again. ({reason})"
    return render_error(request, status=403, detail=detail)
