"""Logging in and out, and the colour theme. Knows nothing of projects."""

from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from apps.console.forms import LoginForm
from apps.console.templatetags.console import THEMES

YEAR_S = 365 * 86400

log_in = LoginView.as_view(
    template_name="console/login.html", authentication_form=LoginForm, redirect_authenticated_user=True
)
log_out = LogoutView.as_view()


@require_safe
def admin_log_in(request: HttpRequest) -> HttpResponse:
    """Send staff to the one door that counts wrong passwords; whoever is in and still comes here is no staff."""
    if request.user.is_authenticated:
        raise PermissionDenied
    return redirect_to_login(request.GET.get("next", "/admin/"))


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Keep the chosen theme in a cookie, so that the server paints the first frame in it."""
    back = request.POST.get("next", "/")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts={request.get_host()}, require_https=request.is_secure())
    response = HttpResponseRedirect(back if safe else "/")
    if request.POST.get("theme") in THEMES:
        response.set_cookie("theme", request.POST["theme"], max_age=YEAR_S, samesite="Lax", secure=request.is_secure())
    else:
        response.delete_cookie("theme", samesite="Lax")
    return response
