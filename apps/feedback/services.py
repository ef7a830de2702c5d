"""Every change to labels. Append-only: a change of mind is a new label, and so is an undo. Rewards follow at once.

Knows no HTTP; the arithmetic is in `scoring.py`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import Q

from apps.accounts.access import Caller
from apps.accounts.models import Role
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.live import publish_news
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.models import Label, LabelQuerySet, Source
from apps.feedback.scoring import REWARD_FIELD, Judgement, Score, score_trajectory
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import find_trajectory, set_rewards

MAX_TEXT = 20_000
MAX_FIELD = 60


@dataclass(frozen=True, kw_only=True)
class _Draft:
    """A label before it is written."""

    caller: Caller
    trajectory_id: str
    step_id: str | None
    value: float | None
    text: str
    source: Source
    field: str
    idempotency_key: str = ""


def add_label(  # noqa: PLR0913 (a label's columns)
    *,
    caller: Caller,
    trajectory: Trajectory,
    step: Step | None = None,
    value: float | None,
    text: str = "",
    source: str | None = None,
    field: str = REWARD_FIELD,
    idempotency_key: str = "",
) -> Label:
    """Add a label and return it; the author's earlier one on the same target and field is superseded.

    The same idempotency key with the same content returns the first label; with other content it is a Conflict.
    Raises InvalidInput for a value outside -1..1, NotFound for another team's trajectory, Forbidden for viewers.
    """
    _require_reviewer(caller, trajectory)
    if step is not None and step.trajectory_id != trajectory.pk:
        raise NotFound(f"the trajectory has no step {step.pk!r}")
    draft = _Draft(
        caller=caller,
        trajectory_id=trajectory.pk,
        step_id=step.pk if step else None,
        value=value,
        text=text,
        source=_choose_source(caller, source),
        field=field,
        idempotency_key=idempotency_key,
    )
    _check_draft(draft)
    try:
        label = _write_label(draft)
    except IntegrityError:  # Two requests with one idempotency key, on two trajectories at the same moment.
        if not idempotency_key:
            raise
        label = _read_repeated(draft, project_id=trajectory.project_id)
    trajectory.refresh_from_db(fields=["reward"])
    return label


@transaction.atomic
def label_steps(*, caller: Caller, trajectory: Trajectory, values: Mapping[str, float]) -> None:
    """Reward many steps of one trajectory at once, by id; what the author said of a step before is superseded.

    Saying the same again adds no label. Raises what `add_label` raises.
    """
    _require_reviewer(caller, trajectory)
    locked = Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    drafts = [_draft_reward(caller, trajectory, step_id=step_id, value=value) for step_id, value in values.items()]
    for draft in drafts:
        _check_draft(draft)
    earlier = {label.step_id: label for label in _own_rewards(drafts)}
    changed = [draft for draft in drafts if _value_of(earlier.get(draft.step_id)) != draft.value]
    labels = Label.objects.bulk_create([_make_label(draft, locked) for draft in changed], batch_size=500)
    superseded = [(earlier[label.step_id], label) for label in labels if label.step_id in earlier]
    for old, new in superseded:
        old.superseded_by = new
    Label.objects.bulk_update([old for old, _ in superseded], ["superseded_by"], batch_size=500)
    _recompute(locked)
    trajectory.refresh_from_db(fields=["reward"])


def _draft_reward(caller: Caller, trajectory: Trajectory, *, step_id: str, value: float) -> _Draft:
    return _Draft(
        caller=caller,
        trajectory_id=trajectory.pk,
        step_id=step_id,
        value=value,
        text="",
        source=_choose_source(caller, None),
        field=REWARD_FIELD,
    )


def _own_rewards(drafts: Sequence[_Draft]) -> LabelQuerySet:
    """What the drafts' author said of their steps before; the drafts are of one author and one trajectory."""
    steps = [draft.step_id for draft in drafts]
    first = drafts[0]
    return Label.objects.current().filter(
        trajectory=first.trajectory_id,
        step__in=steps,
        value__isnull=False,
        field=first.field,
        source=first.source,
        author=first.caller.user,
        key=first.caller.key,
    )


def _value_of(label: Label | None) -> float | None:
    return label.value if label is not None else None


def take_back_label(*, caller: Caller, label: Label) -> Label:
    """Undo a label by a new one without a value. Conflict when it is not the current one any more (a stale undo)."""
    _require_reviewer(caller, label.trajectory)
    if not _is_by(caller, label) and caller.role_in(label.project) not in {Role.OWNER, Role.TRAINER}:
        raise Forbidden("only its author, a trainer or an owner of the team may take this label back")
    with transaction.atomic():
        trajectory = Trajectory.objects.select_for_update().get(pk=label.trajectory_id)
        current = Label.objects.get(pk=label.pk)
        if current.superseded_by_id is not None:
            raise Conflict("this label is not current any more: somebody has changed it or taken it back")
        if current.value is None and not current.text:
            raise Conflict("this label is an undo itself; add a label instead")
        draft = _Draft(
            caller=caller,
            trajectory_id=trajectory.pk,
            step_id=current.step_id,
            value=None,
            text="",
            source=Source(current.source),
            field=current.field,
        )
        undo = _insert(draft, trajectory)
        Label.objects.filter(pk=current.pk, superseded_by=None).update(superseded_by=undo)
        _recompute(trajectory)
    return undo


def find_label(*, caller: Caller, label_id: str) -> Label:
    """Return the label if the caller may see its project."""
    known = Label.objects.select_related("project__team", "trajectory__project", "step")
    label = known.filter(pk=label_id).first() if is_id(label_id, "labl") else None
    if label is None or caller.role_in(label.project) is None:
        raise NotFound(f"there is no label {label_id!r}")
    return label


def list_labels(*, trajectory: Trajectory, step: Step | None = None) -> list[Label]:
    """Return the labels of a trajectory and its steps, or of one step, oldest first, superseded ones too."""
    labels = Label.objects.filter(trajectory=trajectory).select_related("author", "key")
    if step is not None:
        labels = labels.filter(step=step)
    return list(labels.order_by("id"))


def score_labels(*, trajectory: Trajectory) -> Score:
    """Return what the trajectory's current labels add up to."""
    current = Label.objects.current().filter(trajectory=trajectory, field=REWARD_FIELD).order_by("id")
    return score_trajectory(
        Judgement(source=label.source, value=label.value, step_id=label.step_id)
        for label in current
        if label.value is not None
    )


def _require_reviewer(caller: Caller, trajectory: Trajectory) -> None:
    find_trajectory(caller=caller, trajectory_id=trajectory.pk, role=Role.REVIEWER)


def _choose_source(caller: Caller, source: str | None) -> Source:
    """A person speaks as a human; a key never does."""
    if caller.key is None:
        if source not in {None, "", Source.HUMAN}:
            raise InvalidInput("a person's label has the source human; use a key for other sources", field="source")
        return Source.HUMAN
    if not source:
        return Source.ENVIRONMENT
    if source == Source.HUMAN:
        raise InvalidInput(
            "a key cannot speak as a human: log in, or use end_user, environment, rule or judge", field="source"
        )
    if source not in Source.values:
        raise InvalidInput(f"there is no source {source!r}; use end_user, environment, rule or judge", field="source")
    return Source(source)


def _check_draft(draft: _Draft) -> None:
    if draft.value is not None and not (math.isfinite(draft.value) and -1 <= draft.value <= 1):
        raise InvalidInput("a value is a number from -1 to 1", field="value")
    if draft.value is None and not draft.text.strip():
        raise InvalidInput("a label needs a value (or, as a comment, a text)", field="value")
    if draft.value is None and draft.field == REWARD_FIELD:
        raise InvalidInput("a reward needs a value; for a mere comment choose the field comment", field="value")
    if not draft.field or len(draft.field) > MAX_FIELD:
        raise InvalidInput(f"a field's name has 1 to {MAX_FIELD} characters", field="field")
    if len(draft.text) > MAX_TEXT:
        raise InvalidInput(f"a text may have {MAX_TEXT} characters", field="text")
    for name in ("text", "field", "idempotency_key"):
        if not is_storable(getattr(draft, name)):
            raise InvalidInput(NUL_OR_HALF, field=name)


def _write_label(draft: _Draft) -> Label:
    with transaction.atomic():
        trajectory = Trajectory.objects.select_for_update().get(pk=draft.trajectory_id)  # One label at a time on it.
        if draft.idempotency_key and _is_used(draft.idempotency_key, project_id=trajectory.project_id):
            return _read_repeated(draft, project_id=trajectory.project_id)
        label = _insert(draft, trajectory)
        _own_labels(draft).exclude(pk=label.pk).update(superseded_by=label)
        _recompute(trajectory)
    return label


def _own_labels(draft: _Draft) -> LabelQuerySet:
    """What the new label supersedes: at most one. Undos need no superseding: they say nothing."""
    undo = Q(value=None, text="")
    return (
        Label.objects.current()
        .exclude(undo)
        .filter(
            trajectory=draft.trajectory_id,
            step=draft.step_id,
            field=draft.field,
            source=draft.source,
            author=draft.caller.user,
            key=draft.caller.key,
        )
    )


def _insert(draft: _Draft, trajectory: Trajectory) -> Label:
    label = _make_label(draft, trajectory)
    label.save(force_insert=True)
    return label


def _make_label(draft: _Draft, trajectory: Trajectory) -> Label:
    return Label(
        project_id=trajectory.project_id,
        trajectory=trajectory,
        step_id=draft.step_id,
        field=draft.field,
        value=draft.value,
        text=draft.text,
        source=draft.source,
        author=draft.caller.user,
        key=draft.caller.key,
        idempotency_key=draft.idempotency_key,
    )


def _is_used(idempotency_key: str, *, project_id: str) -> bool:
    return Label.objects.filter(project_id=project_id, idempotency_key=idempotency_key).exists()


def _read_repeated(draft: _Draft, *, project_id: str) -> Label:
    first = Label.objects.get(project_id=project_id, idempotency_key=draft.idempotency_key)
    names = ("trajectory_id", "step_id", "value", "text", "source", "field")
    if not _is_by(draft.caller, first) or any(getattr(first, name) != getattr(draft, name) for name in names):
        raise Conflict("this idempotency key was used for another label", field="idempotency_key")
    return first


def _is_by(caller: Caller, label: Label) -> bool:
    if caller.key is not None:
        return label.key_id == caller.key.pk
    return caller.user is not None and label.author_id == caller.user.pk


def _recompute(trajectory: Trajectory) -> None:
    score = score_labels(trajectory=trajectory)
    set_rewards(trajectory=trajectory, reward=score.reward, step_rewards=score.step_rewards)
    publish_news(trajectory.project_id, kind="trajectory", object_id=trajectory.pk)
