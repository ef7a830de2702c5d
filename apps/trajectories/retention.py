"""Lets go of old months as a whole: of the raw calls alone, or of everything. An operator's decision; no HTTP.

Raw calls are what the gateway saw; trajectories, steps and rewards stand without them.
"""

from datetime import datetime

import structlog
from django.db import OperationalError, transaction
from django.db.models import ManyToOneRel, QuerySet
from django.utils import timezone

from apps.accounts.models import Project
from apps.accounts.services import record_event
from apps.core.errors import Conflict
from apps.core.ids import first_id
from apps.trajectories.datasets.models import DatasetMember
from apps.trajectories.models import Exchange, Step, Trajectory, TrajectoryState
from apps.trajectories.months import CALLS, STEMS, STEPS, Table, drop_parts, go_back, has_rows, list_ended_parts
from apps.trajectories.sql_states import is_lock_refused
from apps.trajectories.unassigned import UnassignedCall

log = structlog.get_logger(__name__)

_ACTOR = "operator"
_SLICE = 1000


def drop_old_calls(*, keep: int) -> None:
    """Remove the raw calls of whole months before the last `keep`, if there are any. Raises Conflict."""
    before = go_back(timezone.now(), n_months=keep)
    if any(map(has_rows, list_ended_parts(CALLS, before=before))):
        drop_calls(before=before)


@transaction.atomic
def drop_calls(*, before: datetime) -> None:
    """Remove the raw calls of the months before `before`, the first moment of one.

    Raises Conflict while one of them waits for the recorder.
    """
    bound = first_id(CALLS.prefix, before)
    if Exchange.objects.unfolded().filter(pk__lt=bound).exists():
        raise Conflict(f"calls from before {before:%Y-%m} wait for the recorder: let it fold them first")
    for project in Project.objects.select_related("team"):
        _record(project, "calls.dropped", before)
    UnassignedCall.objects.filter(pk__lt=bound).delete()
    _drop(CALLS, before)
    if not Exchange.objects.filter(pk__lt=bound).exists():  # one that stays (it has no month) needs its stem
        _drop(STEMS, before)


@transaction.atomic
def drop_trajectories(*, before: datetime, even_in_datasets: bool = False) -> None:
    """Remove for good the trajectories that began before `before`, the first moment of a month, with all of theirs.

    Snapshots keep naming them. Raises Conflict while one of them is open, or in a dataset unless that is no matter.
    """
    gone = Trajectory.objects.filter(pk__lt=first_id(STEPS.prefix, before))
    _check_droppable(gone, before, even_in_datasets=even_in_datasets)
    for project in Project.objects.select_related("team"):
        if gone.filter(project=project).exists():
            _record(project, "trajectories.dropped", before)
    for relation in Step._meta.get_fields(include_hidden=True):  # noqa: SLF001 (Django's public name for it)
        if isinstance(relation, ManyToOneRel) and relation.related_model is not Step:
            of_gone = {f"{relation.field.name}__trajectory__in": gone}
            _delete_in_slices(relation.related_model._default_manager.filter(**of_gone))  # noqa: SLF001
    _drop(STEPS, before)
    _delete_in_slices(gone)


def _check_droppable(gone: QuerySet[Trajectory], before: datetime, *, even_in_datasets: bool) -> None:
    open_one = gone.filter(state=TrajectoryState.OPEN, deleted_at=None).first()
    if open_one is not None:
        raise Conflict(f"{open_one.pk} from before {before:%Y-%m} is still open: complete it first")
    member = DatasetMember.objects.filter(trajectory__in=gone).select_related("dataset").first()
    if member is not None and not even_in_datasets:
        raise Conflict(
            f"{member.trajectory_id} from before {before:%Y-%m} is in the dataset {member.dataset.name!r}: "
            "export it and take it out, or drop those too (--even-in-datasets)"
        )


def _delete_in_slices(rows: QuerySet) -> None:  # type: ignore[type-arg]  # of any model
    while ids := list(rows.order_by("pk").values_list("pk", flat=True)[:_SLICE]):
        rows.model._default_manager.filter(pk__in=ids).delete()  # noqa: SLF001


def _drop(table: Table, before: datetime) -> None:
    try:
        drop_parts(table, before=before)
    except OperationalError as error:
        if not is_lock_refused(error):
            raise
        raise Conflict(f"{table.name} is in use: try again in a minute", retry_after_s=60) from error
    log.warning("months.dropped", table=table.name, before=f"{before:%Y-%m}")


def _record(project: Project, action: str, before: datetime) -> None:
    record_event(
        team=project.team, actor=_ACTOR, action=action, object_id=project.pk, detail={"before": f"{before:%Y-%m}"}
    )
