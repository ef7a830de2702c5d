"""The changes that a job can make to many trajectories, each with its way back. Rewards are the room above's
(`apps.feedback.bulk`). Knows nothing of jobs' progress.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Project, Role
from apps.core.errors import InvalidInput, NotFound, ServiceError
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.trajectories.bulk.models import BulkJob, TrajectoryTag
from apps.trajectories.datasets.models import AddedBy, Dataset
from apps.trajectories.datasets.services import delete_members, insert_members
from apps.trajectories.models import Channel, Trajectory, TrajectoryState

Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a trajectory was before (None: it was so already, nothing is to be taken back), or why it stayed so."""

    before: Any = None
    error: str = ""


Outcomes = dict[str, Outcome]


@dataclass(frozen=True, kw_only=True)
class Action:
    """`check` returns the settings in order or raises InvalidInput; `apply` says what became of each row, which are
    locked, or raises a ServiceError that holds for all of them; `undo` takes rows back by id to how they were, where
    nobody has changed them since; None: the action changes nothing that could be taken back.
    """

    name: str
    words: str  # "tag", for a button
    done: str  # "tagged", for a sentence
    does: str  # "Tag {rows} with “{tag}”", for a question and a title; the names in braces are its settings
    role: Role
    check: Callable[[Project, Mapping[str, Any]], Settings]
    apply: Callable[[BulkJob, Sequence[Trajectory]], Outcomes]
    undo: Callable[[BulkJob, Mapping[str, Any]], None] | None

    @property
    def has_undo(self) -> bool:
        return self.undo is not None


def caller_of(job: BulkJob) -> Caller:
    """Return who asked for the job: what it does, it does in their name."""
    return Caller(user=job.author, key=job.key)


def apply_each(rows: Sequence[Trajectory], apply: Callable[[Trajectory], Any]) -> Outcomes:
    """Change rows one by one; what a service refuses is that row's error and stops no other."""
    outcomes = {}
    for row in rows:
        try:
            outcomes[row.pk] = Outcome(before=apply(row))
        except ServiceError as error:
            outcomes[row.pk] = Outcome(error=error.message)
    return outcomes


def take_only(settings: Mapping[str, Any], *names: str) -> None:
    """Refuse settings that the action does not know."""
    if unknown := sorted(set(settings) - set(names)):
        known = f"; it takes {', '.join(names)}" if names else "; it takes none"
        raise InvalidInput(f"the action has no setting {unknown[0]!r}{known}", field="settings")


def _check_nothing(_project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings)
    return {}


def _check_tag(_project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "tag")
    tag = settings.get("tag")
    if not isinstance(tag, str) or not 1 <= len(" ".join(tag.split())) <= 40:
        raise InvalidInput("a tag has 1 to 40 characters", field="tag")
    if not is_storable(tag):
        raise InvalidInput(NUL_OR_HALF, field="tag")
    return {"tag": " ".join(tag.split())}


def _check_new_tag(project: Project, settings: Mapping[str, Any]) -> Settings:
    """Refuse what would be read as several; one that has a comma all the same can still be taken off."""
    checked = _check_tag(project, settings)
    if "," in checked["tag"]:
        raise InvalidInput("a tag has no comma: give several one after the other", field="tag")
    return checked


def _check_channel(_project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "channel")
    if settings.get("channel") not in Channel.values:
        raise InvalidInput(f"channel is one of {', '.join(Channel.values)}", field="channel")
    return dict(settings)


def _check_dataset(project: Project, settings: Mapping[str, Any]) -> Settings:
    take_only(settings, "dataset")
    if not settings.get("dataset"):
        raise InvalidInput("say which dataset; a new one is made under Datasets", field="dataset")
    found = _find_dataset(project.pk, str(settings["dataset"]))
    return {"dataset": found.pk}


def _find_dataset(project_id: str, dataset_id: str) -> Dataset:
    known = Dataset.objects.filter(project=project_id)
    found = known.filter(pk=dataset_id).first() if is_id(dataset_id, "dset") else None
    if found is None:
        raise NotFound(f"this project has no dataset {dataset_id!r}", field="dataset")
    return found


def _set_column(rows: Sequence[Trajectory], *, column: str, value: Any) -> Outcomes:
    changed = [row for row in rows if getattr(row, column) != value]
    Trajectory.objects.filter(pk__in=[row.pk for row in changed]).update(**{column: value})
    ids = {row.pk for row in changed}
    return {row.pk: Outcome(before=getattr(row, column) if row.pk in ids else None) for row in rows}


def _exclude(_job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    return _set_column(rows, column="is_excluded", value=True)


def _include(_job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    return _set_column(rows, column="is_excluded", value=False)


def _undo_exclude(_job: BulkJob, before: Mapping[str, Any]) -> None:
    Trajectory.objects.filter(pk__in=before, is_excluded=True).update(is_excluded=False)


def _undo_include(_job: BulkJob, before: Mapping[str, Any]) -> None:
    Trajectory.objects.filter(pk__in=before, is_excluded=False).update(is_excluded=True)


def _set_channel(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    return _set_column(rows, column="channel", value=job.settings["channel"])


def _undo_channel(job: BulkJob, before: Mapping[str, Any]) -> None:
    for channel in Channel.values:
        ids = [pk for pk, value in before.items() if value == channel]
        Trajectory.objects.filter(pk__in=ids, channel=job.settings["channel"]).update(channel=channel)


def _tagged_ids(rows: Sequence[Trajectory], tag: str) -> set[str]:
    return set(TrajectoryTag.objects.filter(trajectory__in=rows, name=tag).values_list("trajectory_id", flat=True))


def _tag(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    tag = job.settings["tag"]
    known = _tagged_ids(rows, tag)
    fresh = [TrajectoryTag(trajectory=row, name=tag) for row in rows if row.pk not in known]
    TrajectoryTag.objects.bulk_create(fresh, ignore_conflicts=True)
    return {row.pk: Outcome(before=None if row.pk in known else False) for row in rows}


def _untag(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    tag = job.settings["tag"]
    known = _tagged_ids(rows, tag)
    TrajectoryTag.objects.filter(trajectory__in=known, name=tag).delete()
    return {row.pk: Outcome(before=True if row.pk in known else None) for row in rows}


def _undo_tag(job: BulkJob, before: Mapping[str, Any]) -> None:
    TrajectoryTag.objects.filter(trajectory__in=list(before), name=job.settings["tag"]).delete()


def _undo_untag(job: BulkJob, before: Mapping[str, Any]) -> None:
    present = Trajectory.objects.filter(pk__in=before).values_list("pk", flat=True)
    rows = [TrajectoryTag(trajectory_id=pk, name=job.settings["tag"]) for pk in present]
    TrajectoryTag.objects.bulk_create(rows, ignore_conflicts=True)


def _complete(_job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    """Say that nothing more comes. How one was before is when that was said: whoever takes it back needs to know."""
    now = timezone.now()
    ids = {row.pk for row in rows if row.state == TrajectoryState.OPEN}
    Trajectory.objects.filter(pk__in=ids).update(state=TrajectoryState.COMPLETE, completed_at=now)
    return {row.pk: Outcome(before=now.isoformat() if row.pk in ids else None) for row in rows}


def _reopen(_job: BulkJob, before: Mapping[str, Any]) -> None:
    """Open again what has not been completed anew since, and whose session has not begun another one."""
    for pk, moment in before.items():
        rows = Trajectory.objects.filter(pk=pk, completed_at=datetime.fromisoformat(moment))
        with suppress(IntegrityError), transaction.atomic():
            rows.update(state=TrajectoryState.OPEN, completed_at=None)


def _delete(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    """Hide them. Open ones are completed, so that later calls of the session begin anew and are seen."""
    completed = _complete(job, rows)
    Trajectory.objects.filter(pk__in=completed).update(deleted_at=timezone.now())
    return {pk: Outcome(before=outcome.before or False) for pk, outcome in completed.items()}


def _undo_delete(job: BulkJob, before: Mapping[str, Any]) -> None:
    Trajectory.objects.filter(pk__in=before).update(deleted_at=None)
    _reopen(job, {pk: moment for pk, moment in before.items() if moment})


def _add_to_dataset(job: BulkJob, rows: Sequence[Trajectory]) -> Outcomes:
    dataset = _find_dataset(job.project_id, job.settings["dataset"])
    ids = [row.pk for row in rows]
    fresh = insert_members(dataset, ids, how=AddedBy.BULK, query=job.query, by=caller_of(job).name)
    publish_news(job.project_id, kind="dataset", object_id=dataset.pk)
    return {pk: Outcome(before=False if pk in fresh else None) for pk in ids}


def _undo_dataset(job: BulkJob, before: Mapping[str, Any]) -> None:
    with suppress(NotFound):  # deleted meanwhile: it holds nothing any more
        dataset = _find_dataset(job.project_id, job.settings["dataset"])
        delete_members(dataset, list(before))
        publish_news(job.project_id, kind="dataset", object_id=dataset.pk)


TAG = Action(
    name="tag",
    words="tag",
    done="tagged",
    does="Tag {rows} with “{tag}”",
    role=Role.REVIEWER,
    check=_check_new_tag,
    apply=_tag,
    undo=_undo_tag,
)
UNTAG = Action(
    name="untag",
    words="take a tag off",
    done="freed of a tag",
    does="Take the tag “{tag}” off {rows}",
    role=Role.REVIEWER,
    check=_check_tag,
    apply=_untag,
    undo=_undo_untag,
)
CHANNEL = Action(
    name="channel",
    words="move to a channel",
    done="moved to a channel",
    does="Move {rows} to the channel “{channel}”",
    role=Role.REVIEWER,
    check=_check_channel,
    apply=_set_channel,
    undo=_undo_channel,
)
EXCLUDE = Action(
    name="exclude",
    words="keep out of training",
    done="kept out of training",
    does="Keep {rows} out of training",
    role=Role.REVIEWER,
    check=_check_nothing,
    apply=_exclude,
    undo=_undo_exclude,
)
INCLUDE = Action(
    name="include",
    words="let into training",
    done="let into training",
    does="Let {rows} into training",
    role=Role.REVIEWER,
    check=_check_nothing,
    apply=_include,
    undo=_undo_include,
)
DATASET = Action(
    name="dataset",
    words="add to a dataset",
    done="added to a dataset",
    does="Add {rows} to the dataset “{dataset}”",
    role=Role.REVIEWER,
    check=_check_dataset,
    apply=_add_to_dataset,
    undo=_undo_dataset,
)
DELETE = Action(
    name="delete",
    words="delete",
    done="deleted",
    does="Delete {rows}",
    role=Role.TRAINER,
    check=_check_nothing,
    apply=_delete,
    undo=_undo_delete,
)
COMPLETE = Action(
    name="complete",
    words="complete",
    done="completed",
    does="Complete {rows}",
    role=Role.REVIEWER,
    check=_check_nothing,
    apply=_complete,
    undo=_reopen,
)
POOL_ACTIONS = (TAG, UNTAG, CHANNEL, COMPLETE, EXCLUDE, INCLUDE, DATASET, DELETE)
