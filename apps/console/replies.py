"""How the console answers beside whole pages: toasts for htmx, error pages in words. Knows no page's content."""

import json
import re
from urllib.parse import urlsplit

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import Resolver404, resolve, reverse
from django.utils.text import capfirst

from apps.accounts.models import User
from apps.core.errors import ServiceError

TITLES = {
    400: "That request does not make sense",
    403: "You may not do this",
    404: "Nothing here",
    405: "That way is closed",
    409: "Not in this state",
    500: "We broke something",
    503: "A part does not answer",
}
LED_BACK = (400, 409)  # what somebody can mend on the page that they were on
SERVER_ERROR = 500  # what looks up a member's home may be what does not answer
PROJECT = re.compile(r"/p/([\w-]+)/")
CODES = {
    400: "invalid_request",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    500: "internal_error",
    503: "unavailable",
}


def with_toast(
    response: HttpResponse, text: str, *, undo: str = "", kind: str = "done", undo_target: str = "#reward-panel"
) -> HttpResponse:
    """Have the page show a toast; `undo` is an address that takes the change back, its answer goes to `undo_target`."""
    toast = {"text": text, "undo": undo, "kind": kind, "target": undo_target}
    response["HX-Trigger"] = json.dumps({"toast": toast})
    return response


def ask_to_log_in(request: HttpRequest) -> HttpResponse:
    """Lead to the log-in, and from there back; of a page that asked for a part of itself, the whole page goes there."""
    details = getattr(request, "htmx", None)
    if not details:
        return redirect_to_login(request.get_full_path())
    to = redirect_to_login(details.current_url_abs_path or reverse("home")).url
    return HttpResponse(status=204, headers={"HX-Redirect": to})


def refuse(request: HttpRequest, error: ServiceError) -> HttpResponse:
    """Render a service's error: a toast on the page for htmx; what a form asked in vain leads back to the form's page,
    which tells it; else a page of its own."""
    if getattr(request, "htmx", False):
        response = HttpResponse(status=error.status, headers={"HX-Reswap": "none"})
        return with_toast(response, capfirst(error.message), kind="error")
    if request.method == "POST" and error.status in LED_BACK and (form := find_form(request)):
        words = capfirst(error.message.partition("\n")[0])
        messages.error(request, words if words.endswith((".", "?", "!")) else f"{words}.")
        return redirect(form)
    return render_error(request, status=error.status, detail=error.message)


def find_form(request: HttpRequest) -> str:
    """Return the address of the project's page on which the form stood that was sent, "" where none is known."""
    try:
        parts = urlsplit(request.headers.get("Referer", ""))
        view = resolve(parts.path).func
    except (ValueError, Resolver404):
        return ""
    came_from, here = PROJECT.match(parts.path), PROJECT.match(request.path)
    is_here = parts.netloc == request.get_host() and came_from and here and came_from[1] == here[1]
    if not is_here or "GET" not in getattr(view, "methods", ()):
        return ""
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def render_error(request: HttpRequest, *, status: int, detail: str) -> HttpResponse:
    """Render an error page, or problem JSON below /api/."""
    request_id = getattr(request, "request_id", "")
    if request.path.startswith("/api/"):
        body = {"type": "about:blank", "title": TITLES.get(status, "Error"), "status": status, "detail": detail}
        body["code"] = CODES.get(status, "error")
        return JsonResponse({**body, "request_id": request_id}, status=status, content_type="application/problem+json")
    context = {"title": TITLES.get(status, "Error"), "detail": detail, "status": status, "request_id": request_id}
    context["home"] = _find_home(request) if status < SERVER_ERROR else ""
    return render(request, "console/error.html", context, status=status)


def _find_home(request: HttpRequest) -> str:
    """Return the home of the project in whose address a member was stopped; "" outside of any, and for strangers."""
    named = PROJECT.match(request.path)
    user = getattr(request, "user", None)
    if named is None or not isinstance(user, User):
        return ""
    found = user.projects().filter(slug=named[1]).first()
    return reverse("project_home", args=[found.slug]) if found else ""
