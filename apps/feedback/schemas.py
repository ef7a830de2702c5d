"""The score schema of a project: which version is in force, and every change to it. Knows no HTTP.

A change is a new version, and the rewards of everything that was judged before follow in the background.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.errors import InvalidInput
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.models import ScoreSchema
from apps.feedback.score_schema import DEFAULT, Schema, read_schema

MAX_NOTE = 400


@dataclass(frozen=True, kw_only=True)
class ProjectSchema:
    """The schema in force. `id` is None and `number` 0 where the project has none of its own."""

    id: str | None
    number: int
    fields: Schema


def find_schema(project_id: str) -> ProjectSchema:
    """Return the schema in force in a project."""
    newest = ScoreSchema.objects.filter(project=project_id).order_by("-number").first()
    if newest is None:
        return ProjectSchema(id=None, number=0, fields=DEFAULT)
    return ProjectSchema(id=newest.pk, number=newest.number, fields=newest.schema)


def list_schemas(project: Project) -> QuerySet[ScoreSchema]:
    """Return the project's versions, the newest first."""
    return ScoreSchema.objects.filter(project=project).select_related("author", "key").order_by("-number")


@transaction.atomic
def add_schema(*, caller: Caller, project: Project, definition: Mapping[str, Any], note: str = "") -> ScoreSchema:
    """Put a new version in force. The caller starts the job that computes rewards anew (`rescoring.change_schema`).

    Raises InvalidInput that names the setting, Forbidden for reviewers.
    """
    require_role(caller, project, Role.TRAINER)
    schema = read_schema(definition)
    if len(note) > MAX_NOTE or not is_storable(note):
        raise InvalidInput(NUL_OR_HALF if len(note) <= MAX_NOTE else f"a note has {MAX_NOTE} characters", field="note")
    Project.objects.select_for_update().get(pk=project.pk)  # one new version at a time
    row = ScoreSchema.objects.create(
        project=project,
        number=find_schema(project.pk).number + 1,
        definition=schema.model_dump(mode="json"),
        note=note,
        author=caller.user,
        key=caller.key,
    )
    detail = {"number": str(row.number)}
    record_event(team=project.team, actor=caller.name, action="score_schema.created", object_id=row.pk, detail=detail)
    return row
