"""Saved views: a name for a search, seen by all of a project, deleted by whom it belongs to. Knows no HTTP."""

from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.models import SavedView

MAX_VIEWS = 100  # a project
RESTORABLE = timedelta(days=1)


def list_views(project: Project) -> list[SavedView]:
    """Return the project's views by name."""
    rows = SavedView.objects.filter(project=project, deleted_at=None).select_related("owner")
    return list(rows.order_by("name")[:MAX_VIEWS])


def list_restorable(project: Project) -> list[SavedView]:
    """Return the views that were deleted a short while ago."""
    gone = SavedView.objects.filter(project=project, deleted_at__gte=timezone.now() - RESTORABLE)
    return list(gone.order_by("-deleted_at")[:10])


def save_view(*, caller: Caller, project: Project, name: str, query: str) -> SavedView:
    """Give a search a name. Raises InvalidInput, SearchError, and Conflict when the name is taken."""
    require_role(caller, project, Role.REVIEWER)
    name = " ".join(name.split())
    if not 1 <= len(name) <= 60 or not is_storable(name):
        fault = "a view's name has 1 to 60 characters" if is_storable(name) else NUL_OR_HALF
        raise InvalidInput(fault, field="name")
    if SavedView.objects.filter(project=project, deleted_at=None).count() >= MAX_VIEWS:
        raise Conflict(f"a project may have {MAX_VIEWS} saved views: delete one first")
    view = SavedView(project=project, owner=caller.user, name=name, query=str(parse_query(query)))
    return _write(view)


def find_view(*, caller: Caller, view_id: str) -> SavedView:
    """Return the view if the caller may see its project."""
    known = SavedView.objects.select_related("project__team", "owner")
    view = known.filter(pk=view_id).first() if is_id(view_id, "view") else None
    if view is None or caller.role_in(view.project) is None:
        raise NotFound(f"there is no saved view {view_id!r}")
    return view


def delete_view(*, caller: Caller, view: SavedView) -> None:
    """Take a view away; `restore_view` brings it back. Doing it twice is fine."""
    _require_hold(caller, view)
    SavedView.objects.filter(pk=view.pk, deleted_at=None).update(deleted_at=timezone.now())


def restore_view(*, caller: Caller, view: SavedView) -> SavedView:
    """Undo `delete_view`. Raises Conflict when another view has taken its name meanwhile."""
    _require_hold(caller, view)
    view.deleted_at = None
    return _write(view)


def may_change(caller: Caller, view: SavedView) -> bool:
    """Say whether the view is the caller's, or the caller keeps order in the team."""
    is_own = caller.user is not None and view.owner_id == caller.user.pk
    return is_own or caller.role_in(view.project) in {Role.OWNER, Role.TRAINER}


def _require_hold(caller: Caller, view: SavedView) -> None:
    require_role(caller, view.project, Role.REVIEWER)
    if not may_change(caller, view):
        raise Forbidden(f"this view belongs to {view.owner or 'nobody any more'}: ask them, a trainer or an owner")


def _write(view: SavedView) -> SavedView:
    try:
        with transaction.atomic():
            view.save()
    except IntegrityError:
        raise Conflict(f"there is a view {view.name!r} already: choose another name", field="name") from None
    return view
