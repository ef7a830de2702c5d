"""A new score schema, and the rewards that follow from it: a job over all that was judged, with progress. No HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from apps.accounts.access import Caller
from apps.accounts.models import Project, Role
from apps.feedback.models import ScoreSchema
from apps.feedback.rewards import recompute_many
from apps.feedback.schemas import add_schema
from apps.trajectories.bulk.actions import Action, Outcome, Outcomes, Settings, take_only
from apps.trajectories.bulk.models import BulkJob
from apps.trajectories.bulk.services import start_job
from apps.trajectories.models import Trajectory

JUDGED = "label:any"


def _check(_project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings)
    return {}


def _rescore(_job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    recompute_many(rows)
    return {row.pk: Outcome() for row in rows}


RESCORE = Action(
    name="rescore",
    words="compute rewards anew",
    done="computed anew",
    does="Compute the rewards of {rows} anew",
    role=Role.TRAINER,
    check=_check,
    apply=_rescore,
    undo=None,
)


@transaction.atomic
def change_schema(
    *, caller: Caller, project: Project, definition: Mapping[str, Any], note: str = ""
) -> tuple[ScoreSchema, BulkJob]:
    """Put a new version of the score schema in force; return it and the job by which rewards follow.

    Raises what `schemas.add_schema` raises.
    """
    row = add_schema(caller=caller, project=project, definition=definition, note=note)
    return row, start_job(caller=caller, project=project, action=RESCORE, settings={}, query=JUDGED)
