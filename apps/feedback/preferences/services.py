"""Every change to preferences: corrections, comparisons, rankings, and their undo. Append-only, like labels.

Knows no HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Role
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id, new_id
from apps.core.live import publish_news
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.models import Label
from apps.feedback.preferences.models import Preference, PreferenceKind
from apps.feedback.preferences.sides import Side, check_sides, hash_pair, read_message
from apps.feedback.schemas import find_schema
from apps.feedback.score_schema import MAX_TEXT, FieldKind
from apps.feedback.services import Answer, Author, add_labels, choose_source
from apps.feedback.superseding import supersede
from apps.trajectories.blindness import find_hidden
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.services import find_trajectory

MOST_RANKED = 16


def add_correction(
    *, caller: Caller, step: Step, message: Any, text: str = "", source: str | None = None, idempotency_key: str = ""
) -> Preference:
    """Keep what the step should have said: an answer to imitate, and better than what it did say. Returns it.

    `message` is an assistant message or its words. What the author wrote for this step before is superseded. Raises
    InvalidInput, NotFound for another team's step, Forbidden for viewers, Conflict for a used idempotency key.
    """
    message = read_message({"content": message} if isinstance(message, str) else message)
    if Side(message=message).said == Side(step=step).said:
        raise InvalidInput("this is what the step said: change it, or reward the step instead", field="message")
    better = Side(message=message)
    row = Preference(
        kind=PreferenceKind.CORRECTION,
        trajectory=step.trajectory,
        step=step,
        chosen_message=message,
        rejected_step=step,
        pair=hash_pair(Side(step=step), Side(message={}), kind=PreferenceKind.CORRECTION, field=""),
        text=text,
        idempotency_key=idempotency_key,
    )
    check_sides(better, Side(step=step))
    return _add(row, caller=caller, source=source)


def add_comparison(
    *,
    caller: Caller,
    chosen: Side,
    rejected: Side,
    is_tie: bool = False,
    text: str = "",
    source: str | None = None,
    idempotency_key: str = "",
) -> Preference:
    """Keep that one side is better than the other, or as good. What the author said of these two before is superseded.

    Raises what `add_correction` raises.
    """
    check_sides(chosen, rejected)
    # Two steps may have said the same after different thoughts; a message has none.
    if not is_tie and (chosen.message or rejected.message) and chosen.said == rejected.said:
        raise InvalidInput("there is nothing to choose: both answers say the same", field="rejected")
    row = _make_pair(chosen, rejected, kind=PreferenceKind.COMPARISON)
    row.is_tie, row.text, row.idempotency_key = is_tie, text, idempotency_key
    return _add(row, caller=caller, source=source)


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Several put in order: the pairs that follow, and the labels by which each has its place."""

    id: str
    pairs: list[Preference]
    labels: list[Label]


@transaction.atomic
def add_ranking(
    *,
    caller: Caller,
    field: str,
    places: Sequence[Sequence[Trajectory]],
    text: str = "",
    source: str | None = None,
) -> Ranking:
    """Put trajectories in order, the best first; those of one place are as good as each other.

    Each gets a label with its place in `field` (a ranking of the score schema), and of each two in different places one
    is better. Raises what `add_correction` raises.
    """
    ranked = [trajectory for place in places for trajectory in place]
    _check_ranked(ranked, field=field)
    first = ranked[0]
    if find_schema(first.project_id).fields.find_field(field).kind != FieldKind.RANKING:
        raise InvalidInput(f"{field} is no ranking in this project's score schema", field="field")
    for trajectory in sorted(ranked, key=lambda trajectory: trajectory.pk):  # in one order, whoever ranks at once
        find_trajectory(caller=caller, trajectory_id=trajectory.pk, role=Role.REVIEWER)
        Trajectory.objects.select_for_update().get(pk=trajectory.pk)
    ranking_id = new_id("rank")
    labels, above = [], 0
    for place in places:
        said = {"place": above + 1, "of": len(ranked)}
        for trajectory in place:
            answer = Answer(field=field, value=said, text=text)
            labels += add_labels(caller=caller, trajectory=trajectory, answers=[answer], source=source)
        above += len(place)
    author = Author(caller=caller, source=choose_source(caller, source))
    pairs = [
        _make_pair(Side(trajectory=one), Side(trajectory=other), kind=PreferenceKind.RANKING, field=field)
        for better, worse in combinations(places, 2)
        for one, other in product(better, worse)
    ]
    for row in pairs:
        _sign(row, author)
        row.ranking, row.text = ranking_id, text
    return Ranking(id=ranking_id, pairs=_write_rows(pairs), labels=labels)


def _check_ranked(ranked: Sequence[Trajectory], *, field: str) -> None:
    if not 2 <= len(ranked) <= MOST_RANKED:
        raise InvalidInput(f"rank 2 to {MOST_RANKED} trajectories", field="places")
    if len({trajectory.pk for trajectory in ranked}) != len(ranked):
        raise InvalidInput("a trajectory has one place", field="places")
    if len({trajectory.project_id for trajectory in ranked}) != 1:
        raise NotFound("rank trajectories of one project", field=field)


def take_back_preference(*, caller: Caller, preference: Preference) -> Preference:
    """Undo a preference by a new one that stands for nothing. Conflict when it is not current any more."""
    find_trajectory(caller=caller, trajectory_id=preference.trajectory_id, role=Role.REVIEWER)
    if not _is_by(caller, preference) and caller.role_in(preference.project) not in {Role.OWNER, Role.TRAINER}:
        raise Forbidden("only its author, a trainer or an owner of the team may take this back")
    if preference.is_undo:
        raise Conflict("this is an undo itself; say again what is better instead")
    undo = Preference.objects.get(pk=preference.pk)
    undo.pk, undo.is_undo, undo.superseded_by_id, undo.idempotency_key = new_id("pref"), True, None, ""
    undo.author, undo.key = caller.user, caller.key
    undo.created_at = timezone.now()
    with transaction.atomic():
        undo.save(force_insert=True)
        _supersede({preference.pk: undo})
        publish_news(undo.project_id, kind="trajectory", object_id=undo.trajectory_id)
    return undo


@transaction.atomic
def undo_preference(*, caller: Caller, preference: Preference) -> None:
    """Take a preference back as if it had never been said: what its author had said of these two before is said again.
    Raises what `take_back_preference` raises."""
    earlier = list(Preference.objects.filter(superseded_by=preference.pk).values_list("pk", flat=True))
    take_back_preference(caller=caller, preference=preference)
    compare_again(earlier)


@transaction.atomic
def compare_again(ids: Sequence[str]) -> dict[str, str]:
    """Say what these preferences said once more, each in its author's name; returns the new ids by the old ones. Whose
    account is gone or who has spoken again meanwhile keeps silent, and so does what is about deleted trajectories."""
    silent = Preference.objects.undeleted().filter(Q(author__isnull=False) | Q(key__isnull=False), pk__in=ids)
    said_again = {}
    for row in silent.order_by("pk"):
        _lock_sides(row)
        known = Preference.objects.standing().filter(project=row.project_id, pair=row.pair)
        if known.filter(author=row.author_id, key=row.key_id).exists():
            continue
        old = row.pk
        row.pk, row.superseded_by_id, row.idempotency_key = new_id("pref"), None, ""
        row.created_at = timezone.now()
        row.save(force_insert=True)
        publish_news(row.project_id, kind="trajectory", object_id=row.trajectory_id)
        said_again[old] = row.pk
    return said_again


def find_preference(*, caller: Caller, preference_id: str) -> Preference:
    """Return the preference if the caller may see its project, and it now."""
    known = Preference.objects.seen_by(caller, hidden=find_hidden(caller))
    known = known.select_related("project__team", "trajectory", "step", "author", "key")
    row = known.undeleted().filter(pk=preference_id).first() if is_id(preference_id, "pref") else None
    if row is None or caller.role_in(row.project) is None:
        raise NotFound(f"there is no preference {preference_id!r}")
    return row


def _make_pair(chosen: Side, rejected: Side, *, kind: PreferenceKind, field: str = "") -> Preference:
    step = chosen.step or rejected.step
    trajectory = step.trajectory if step is not None else chosen.trajectory
    assert trajectory is not None  # noqa: S101 (check_sides stands before)
    return Preference(
        kind=kind,
        trajectory=trajectory,
        step=step,
        chosen_step=chosen.step,
        chosen_message=chosen.message,
        chosen_version=chosen.version,
        rejected_trajectory=rejected.trajectory,
        rejected_step=rejected.step,
        rejected_message=rejected.message,
        rejected_version=rejected.version,
        pair=hash_pair(chosen, rejected, kind=kind, field=field),
        field=field,
    )


def _add(row: Preference, *, caller: Caller, source: str | None) -> Preference:
    rejected = row.rejected_step.trajectory if row.rejected_step is not None else row.rejected_trajectory
    for trajectory in (row.trajectory, rejected or row.trajectory):
        find_trajectory(caller=caller, trajectory_id=trajectory.pk, role=Role.REVIEWER)
        if trajectory.project_id != row.trajectory.project_id:
            raise NotFound("both sides belong to one project", field="rejected")
    if len(row.text) > MAX_TEXT:
        raise InvalidInput(f"a text may have {MAX_TEXT} characters", field="text")
    for name in ("text", "idempotency_key"):
        if not is_storable(getattr(row, name)):
            raise InvalidInput(NUL_OR_HALF, field=name)
    _sign(row, Author(caller=caller, source=choose_source(caller, source)))
    try:
        return _write(row)
    except IntegrityError:  # Two requests with one idempotency key, on two trajectories at the same moment.
        if not row.idempotency_key:
            raise
        return _read_repeated(row)


def _sign(row: Preference, author: Author) -> None:
    row.project_id, row.source = row.trajectory.project_id, author.source
    row.author, row.key = author.caller.user, author.caller.key


@transaction.atomic
def _write(row: Preference) -> Preference:
    _lock_sides(row)
    known = Preference.objects.filter(project_id=row.project_id, idempotency_key=row.idempotency_key)
    if row.idempotency_key and known.exists():
        return _read_repeated(row)
    [written] = _write_rows([row])
    publish_news(row.project_id, kind="trajectory", object_id=row.trajectory_id)
    return written


def _lock_sides(row: Preference) -> None:
    """One author at a time on the trajectories of both sides; in one order, since others may say the opposite now."""
    steps = [step.trajectory_id for step in (row.chosen_step, row.rejected_step) if step is not None]
    ids = {row.trajectory_id, row.rejected_trajectory_id or row.trajectory_id, *steps}
    list(Trajectory.objects.select_for_update().filter(pk__in=ids).order_by("pk").values_list("pk"))


def _write_rows(rows: Sequence[Preference]) -> list[Preference]:
    """Write what one author says of one project, in place of what they said of the same pairs before. Their
    trajectories are locked."""
    if not rows:
        return []
    first = rows[0]
    own = Preference.objects.standing().filter(project_id=first.project_id, pair__in=[row.pair for row in rows])
    own = own.filter(source=first.source, author=first.author, key=first.key).order_by("pk")
    earlier = dict(own.values_list("pair", "pk"))
    Preference.objects.bulk_create(rows)
    _supersede({earlier[row.pair]: row for row in rows if row.pair in earlier})
    return list(rows)


def _supersede(successors: Mapping[str, Preference]) -> None:
    refusal = "this is not current any more: somebody has changed it or taken it back"
    supersede(Preference.objects.standing(), successors, refusal=refusal)


def _read_repeated(row: Preference) -> Preference:
    first = Preference.objects.get(project_id=row.project_id, idempotency_key=row.idempotency_key)
    said = ("pair", "kind", "is_tie", "text", "source", "author", "key", "trajectory_id")
    chosen = ("chosen_step_id", "chosen_message", "chosen_version_id")
    rejected = ("rejected_trajectory_id", "rejected_step_id", "rejected_message", "rejected_version_id")
    names = (*said, *chosen, *rejected)  # `pair` is the same in either order: the sides say which is better
    if any(getattr(first, name) != getattr(row, name) for name in names):
        raise Conflict("this idempotency key was used for another preference", field="idempotency_key")
    return first


def _is_by(caller: Caller, row: Preference) -> bool:
    if caller.key is not None:
        return row.key_id == caller.key.pk
    return caller.user is not None and row.author_id == caller.user.pk
