"""Every change to datasets: making one, adding to it, taking out, freezing it. Knows no HTTP and no search language."""

import hashlib
import json
from collections.abc import Collection, Iterator

from django.db import IntegrityError, connection, transaction
from django.db.models import Max, QuerySet
from django.db.models.deletion import ProtectedError

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role
from apps.accounts.services import record_event
from apps.core.errors import Conflict, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember, Snapshot, SnapshotEntry
from apps.trajectories.datasets.sql import COPY_MEMBERS, SUM_ENTRIES
from apps.trajectories.models import Trajectory

MAX_NAME = 100
MAX_DESCRIPTION = 4000
MAX_NOTE = 200
MAX_QUERIES = 100  # kept with a snapshot
MAX_IDS = 5000  # named in one call
_CHUNK = 5000


def find_dataset(*, caller: Caller, dataset_id: str, role: Role = Role.VIEWER) -> Dataset:
    """Return the dataset if the caller has `role` in its project. Another team's id looks like a missing one."""
    known = Dataset.objects.select_related("project__team")
    dataset = known.filter(pk=dataset_id).first() if is_id(dataset_id, "dset") else None
    if dataset is None or caller.role_in(dataset.project) is None:
        raise NotFound(f"there is no dataset {dataset_id!r}")
    require_role(caller, dataset.project, role)
    return dataset


def hold_dataset(dataset: Dataset) -> None:
    """Keep the dataset from being deleted until the transaction ends. Raises NotFound when it has been since it was
    found.
    """
    held = Dataset.objects.select_for_update(no_key=True).filter(pk=dataset.pk).values_list("pk").first()
    if held is None:
        raise NotFound(f"there is no dataset {dataset.pk!r}")


def find_snapshot(*, caller: Caller, snapshot_id: str, role: Role = Role.VIEWER) -> Snapshot:
    """Return the snapshot if the caller has `role` in its project."""
    known = Snapshot.objects.select_related("dataset__project__team")
    snapshot = known.filter(pk=snapshot_id).first() if is_id(snapshot_id, "snap") else None
    if snapshot is None or caller.role_in(snapshot.dataset.project) is None:
        raise NotFound(f"there is no snapshot {snapshot_id!r}")
    require_role(caller, snapshot.dataset.project, role)
    return snapshot


@transaction.atomic
def create_dataset(*, project: Project, caller: Caller, name: str, description: str = "") -> Dataset:
    """Make an empty dataset. Raises Conflict when the project has one of that name."""
    require_role(caller, project, Role.REVIEWER)
    name = name.strip()
    _check_texts(name=name, description=description)
    try:
        with transaction.atomic():
            dataset = Dataset.objects.create(
                project=project, name=name, description=description, created_by=caller.name
            )
    except IntegrityError as error:
        raise Conflict(f"this project has a dataset named {name!r} already", field="name") from error
    _tell(dataset, caller, "dataset.created")
    return dataset


@transaction.atomic
def describe_dataset(*, dataset: Dataset, caller: Caller, name: str | None, description: str | None) -> Dataset:
    """Give a dataset another name or description; None leaves what is there."""
    require_role(caller, dataset.project, Role.REVIEWER)
    hold_dataset(dataset)
    dataset.name = dataset.name if name is None else name.strip()
    dataset.description = dataset.description if description is None else description
    _check_texts(name=dataset.name, description=dataset.description)
    try:
        with transaction.atomic():
            dataset.save(update_fields=["name", "description"])
    except IntegrityError as error:
        raise Conflict(f"this project has a dataset named {dataset.name!r} already", field="name") from error
    _tell(dataset, caller, "dataset.described")
    return dataset


@transaction.atomic
def delete_dataset(*, dataset: Dataset, caller: Caller) -> None:
    """Delete a dataset; its trajectories stay. Raises Conflict when it has snapshots: they are kept for good."""
    require_role(caller, dataset.project, Role.TRAINER)
    row = Dataset.objects.select_for_update().filter(pk=dataset.pk).first()  # whoever holds it has ended then
    if row is None:
        raise NotFound(f"there is no dataset {dataset.pk!r}")
    try:
        with transaction.atomic():
            row.delete()
    except ProtectedError as error:
        raise Conflict("a dataset with snapshots or exports stays: they refer to it") from error
    _tell(dataset, caller, "dataset.deleted")


@transaction.atomic
def add_to_dataset(
    *,
    dataset: Dataset,
    caller: Caller,
    trajectories: QuerySet[Trajectory],
    how: AddedBy = AddedBy.HAND,
    query: str = "",
) -> int:
    """Add trajectories of the dataset's project and return how many are new in it. What is in it already stays as it
    was added; rows of another project are left out.
    """
    require_role(caller, dataset.project, Role.REVIEWER)
    added = 0
    ids = trajectories.filter(project_id=dataset.project_id).order_by().values_list("id", flat=True)
    for chunk in _chunks(ids.iterator(chunk_size=_CHUNK)):
        added += len(insert_members(dataset, chunk, how=how, query=query, by=caller.name))
    if added:
        _tell(dataset, caller, "dataset.added_to", n=added)
    return added


def insert_members(dataset: Dataset, ids: Collection[str], *, how: AddedBy, query: str, by: str) -> set[str]:
    """Put trajectories of the dataset's project into it and return which are new in it. Whoever calls has asked for the
    role, and tells of it.
    """
    hold_dataset(dataset)
    known = set(dataset.members.filter(trajectory_id__in=ids).values_list("trajectory_id", flat=True))
    fresh = [
        DatasetMember(dataset=dataset, trajectory_id=trajectory_id, added_how=how, query=query, added_by=by)
        for trajectory_id in ids
        if trajectory_id not in known
    ]
    DatasetMember.objects.bulk_create(fresh, ignore_conflicts=True)  # another call may have been faster
    return {member.trajectory_id for member in fresh}


def add_ids_to_dataset(*, dataset: Dataset, caller: Caller, ids: Collection[str]) -> int:
    """Add trajectories by their ids. Raises NotFound that names the first which the project does not have."""
    wanted = _check_ids(ids)
    rows = Trajectory.objects.of_project(dataset.project).filter(pk__in=wanted)
    missing = set(wanted) - set(rows.values_list("id", flat=True))
    if missing:
        raise NotFound(f"this project has no trajectory {min(missing)!r}; nothing was added")
    return add_to_dataset(dataset=dataset, caller=caller, trajectories=rows)


@transaction.atomic
def remove_from_dataset(*, dataset: Dataset, caller: Caller, ids: Collection[str]) -> int:
    """Take trajectories out by their ids and return how many were in it. Snapshots keep them."""
    require_role(caller, dataset.project, Role.REVIEWER)
    wanted = _check_ids(ids)
    hold_dataset(dataset)
    removed = delete_members(dataset, wanted)
    if removed:
        _tell(dataset, caller, "dataset.removed_from", n=removed)
    return removed


def delete_members(dataset: Dataset, ids: Collection[str]) -> int:
    """Do the opposite of `insert_members`; returns how many were in it."""
    removed, _ = DatasetMember.objects.filter(dataset=dataset, trajectory_id__in=ids).delete()
    return removed


@transaction.atomic
def take_snapshot(*, dataset: Dataset, caller: Caller, note: str = "") -> Snapshot:
    """Freeze what the dataset holds now, with the rewards that it has now. Raises InvalidInput when it is empty."""
    require_role(caller, dataset.project, Role.REVIEWER)
    if len(note) > MAX_NOTE or not is_storable(note):
        raise InvalidInput(f"note may have {MAX_NOTE} characters, and no null", field="note")
    hold_dataset(dataset)  # one number each
    last = Snapshot.objects.filter(dataset=dataset).aggregate(last=Max("number"))["last"] or 0
    snapshot = Snapshot.objects.create(
        dataset=dataset, number=last + 1, note=note, queries=_list_queries(dataset), created_by=caller.name
    )
    with connection.cursor() as cursor:
        cursor.execute(COPY_MEMBERS, [snapshot.pk, dataset.pk])
        if not cursor.rowcount:
            raise InvalidInput("the dataset holds no trajectory: there is nothing to freeze", field="dataset")
        cursor.execute(SUM_ENTRIES, [compute_checksum(snapshot), snapshot.pk])
    _tell(dataset, caller, "snapshot.taken", snapshot=snapshot.pk)
    snapshot.refresh_from_db()
    return snapshot


def compute_checksum(snapshot: Snapshot) -> str:
    """Return the SHA-256 (hex) over the entries in order of their ids, one JSON line each. It depends on nothing but
    what was selected and how it was judged, so equal snapshots have equal checksums.
    """
    digest = hashlib.sha256()
    entries = SnapshotEntry.objects.filter(snapshot=snapshot).order_by("trajectory_id")
    for entry in entries.iterator(chunk_size=_CHUNK):
        line = [entry.trajectory_id, entry.content, entry.reward, sorted(entry.step_rewards.items())]
        line += [entry.judged] if entry.judged else []  # without: as in snapshots from before it was kept
        digest.update(json.dumps(line, separators=(",", ":"), sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _list_queries(dataset: Dataset) -> list[str]:
    rows = dataset.members.exclude(query="").order_by("query").values_list("query", flat=True).distinct()
    return list(rows[:MAX_QUERIES])


def _check_texts(*, name: str, description: str) -> None:
    if not name or len(name) > MAX_NAME:
        raise InvalidInput(f"a dataset's name has 1 to {MAX_NAME} characters", field="name")
    if len(description) > MAX_DESCRIPTION:
        raise InvalidInput(f"a description may have {MAX_DESCRIPTION} characters", field="description")
    for field, text in {"name": name, "description": description}.items():
        if not is_storable(text):
            raise InvalidInput(f"{field}: {NUL_OR_HALF}", field=field)


def _check_ids(ids: Collection[str]) -> list[str]:
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidInput(f"name 1 to {MAX_IDS} trajectories at once", field="trajectories")
    for trajectory_id in ids:
        if not is_id(trajectory_id, "traj"):
            raise NotFound(f"this project has no trajectory {trajectory_id!r}; nothing was changed")
    return list(ids)


def _chunks(ids: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for trajectory_id in ids:
        chunk.append(trajectory_id)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _tell(dataset: Dataset, caller: Caller, action: str, **detail: object) -> None:
    words = {name: str(value) for name, value in detail.items()}
    record_event(
        team=dataset.project.team, actor=caller.name, action=action, object_id=dataset.pk, detail=words or None
    )
    publish_news(dataset.project_id, kind="dataset", object_id=dataset.pk)
