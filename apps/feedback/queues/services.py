"""Making review queues and changing them, and the way to find one. Knows no HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from apps.accounts.access import Caller, require_role
from apps.accounts.models import Project, Role, User
from apps.accounts.services import record_event as audit
from apps.core.contracts.tasks import FILL_QUEUE
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.core.ids import is_id
from apps.core.jobs import queue_task
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import MOST_REVIEWS, ItemState, Mode, QueueItem, QueueState, ReviewQueue
from apps.feedback.schemas import ProjectSchema, find_schema
from apps.feedback.score_schema import COMMENT_FIELD, MAX_TEXT, REWARD_FIELD, FieldKind, FieldSpec
from apps.trajectories.search.language import parse_query

MAX_QUEUES = 200
MAX_FIELDS = 12  # one page has them all
DEFAULT_FIELDS = (REWARD_FIELD, COMMENT_FIELD)
BETTER = "better"  # what a pair is asked
_LIMITS = {"n_reviews": (1, MOST_REVIEWS), "hold_minutes": (1, 1440), "tolerance": (0, 1)}
_PLAIN = ("name", "guideline", "query", "auto_add", "is_blind", "sample_rate", *_LIMITS)
SETTINGS = (*_PLAIN, "mode", "field_names", "reviewers")


def create_queue(*, caller: Caller, project: Project, settings: Mapping[str, Any]) -> ReviewQueue:
    """Make a queue; what its search finds comes into it in the background.

    Raises InvalidInput that names the setting, Conflict for a name that is taken, Forbidden for reviewers.
    """
    require_role(caller, project, Role.TRAINER)
    if ReviewQueue.objects.filter(project=project).exclude(state=QueueState.ARCHIVED).count() >= MAX_QUEUES:
        raise Conflict(f"a project may have {MAX_QUEUES} review queues: archive one first")
    queue = ReviewQueue(project=project, author=caller.user, mode=_read_mode(settings.get("mode", Mode.SCORE)))
    settings = {"name": "", "field_names": list(DEFAULT_FIELDS), **settings}
    return _write(queue, settings, caller=caller, action="queue.created")


def change_queue(*, caller: Caller, queue: ReviewQueue, settings: Mapping[str, Any]) -> ReviewQueue:
    """Change what is given. Another number of reviews is for items that nobody has begun; the mode stays.

    Raises what `create_queue` raises.
    """
    require_role(caller, queue.project, Role.TRAINER)
    if settings.get("mode", queue.mode) != queue.mode:
        raise Conflict("a queue keeps its mode, since its reviews would mean nothing in the other: make a new one")
    return _write(queue, settings, caller=caller, action="queue.changed")


def set_state(*, caller: Caller, queue: ReviewQueue, state: str) -> ReviewQueue:
    """Pause, open or archive a queue. Saying the same twice is fine."""
    require_role(caller, queue.project, Role.TRAINER)
    if state not in QueueState.values:
        raise InvalidInput(f"state is one of {', '.join(QueueState.values)}", field="state")
    try:
        with transaction.atomic():
            if ReviewQueue.objects.filter(pk=queue.pk).exclude(state=state).update(state=state):
                audit(team=queue.project.team, actor=caller.name, action=f"queue.{state}", object_id=queue.pk)
                record_event(queue, kind=state, actor=caller.name)
    except IntegrityError:
        raise Conflict(f"another queue is named {queue.name!r} meanwhile: give this one another name") from None
    queue.refresh_from_db()
    return queue


def find_queue(*, caller: Caller, queue_id: str, role: Role = Role.VIEWER) -> ReviewQueue:
    """Return the queue if the caller has `role` in its project. Another team's id looks like a missing one."""
    known = ReviewQueue.objects.select_related("project__team", "author")
    queue = known.filter(pk=queue_id).first() if is_id(queue_id, "queue") else None
    if queue is None or caller.role_in(queue.project) is None:
        raise NotFound(f"there is no review queue {queue_id!r}")
    require_role(caller, queue.project, role)
    return queue


def find_item(*, caller: Caller, item_id: str, role: Role = Role.VIEWER) -> QueueItem:
    """Return an item of a queue, likewise."""
    known = QueueItem.objects.select_related("queue__project__team", "trajectory", "other", "decided_by")
    item = known.filter(pk=item_id).first() if is_id(item_id, "item") else None
    if item is None or caller.role_in(item.queue.project) is None:
        raise NotFound(f"there is no item {item_id!r}")
    require_role(caller, item.queue.project, role)
    return item


def list_queues(project: Project) -> QuerySet[ReviewQueue]:
    """Return the project's queues, for paging."""
    return ReviewQueue.objects.filter(project=project).select_related("author")


def list_open_queues(project: Project) -> list[ReviewQueue]:
    """Return the queues that can be added to, by name."""
    return list(ReviewQueue.objects.filter(project=project).exclude(state=QueueState.ARCHIVED).order_by("name")[:100])


def require_reviewer(caller: Caller, queue: ReviewQueue) -> User:
    """Return the person who reviews. Raises Forbidden for keys, viewers, and people whom the queue does not name."""
    require_role(caller, queue.project, Role.REVIEWER)
    if caller.user is None:
        raise Forbidden("a review is a person's: log in; keys add labels to trajectories instead")
    named = list(queue.reviewers.values_list("pk", flat=True))
    if named and caller.user.pk not in named:
        raise Forbidden("this queue is for other reviewers: ask a trainer or an owner of the team to name you")
    return caller.user


def read_fields(queue: ReviewQueue, schema: ProjectSchema | None = None) -> list[FieldSpec]:
    """Return the fields that a review of this queue fills in, those that the score schema still has; `schema` is the
    one in force, if it is known."""
    if queue.mode == Mode.PAIRS:
        return []
    schema = schema or find_schema(queue.project_id)
    known = {spec.name: spec for spec in schema.fields.fields}
    return [known[name] for name in queue.field_names if name in known]


@transaction.atomic
def _write(queue: ReviewQueue, settings: Mapping[str, Any], *, caller: Caller, action: str) -> ReviewQueue:
    before, n_before = (queue.query, queue.sample_rate, queue.auto_add), queue.n_reviews
    for name in _PLAIN:
        if name in settings:
            setattr(queue, name, settings[name])
    queue.name = " ".join(queue.name.split())
    _check_words(queue)
    _check_numbers(queue)
    queue.query = str(parse_query(queue.query))
    if "field_names" in settings and queue.mode == Mode.SCORE:
        queue.field_names = _check_fields(queue, settings["field_names"])
    is_new = queue._state.adding  # noqa: SLF001 (Django's name for it)
    if is_new or before != (queue.query, queue.sample_rate, queue.auto_add):
        queue.filled_at, queue.searcher, queue.left_out = None, caller.user, []
    try:
        with transaction.atomic():
            # Of a queue that is there only this: others count its events meanwhile, and change what is not named here.
            named = [name for name in (*_PLAIN, "field_names") if name in settings]
            queue.save(update_fields=None if is_new else [*named, "filled_at", "searcher", "left_out"])
    except IntegrityError:
        raise Conflict(f"this project has a queue named {queue.name!r} already", field="name") from None
    if "reviewers" in settings:
        queue.reviewers.set(_find_reviewers(queue, settings["reviewers"]))
    if queue.n_reviews != n_before:
        queue.items.filter(state=ItemState.OPEN, n_done=0, n_held=0).update(n_wanted=queue.n_reviews)
    audit(team=queue.project.team, actor=caller.name, action=action, object_id=queue.pk)
    record_event(queue, kind=action.removeprefix("queue."), actor=caller.name)
    if queue.filled_at is None and queue.has_source:
        queue_task(FILL_QUEUE, queue.pk)
    queue.refresh_from_db()
    return queue


def _read_mode(mode: Any) -> Mode:
    if mode not in Mode.values:
        raise InvalidInput(f"mode is one of {', '.join(Mode.values)}", field="mode")
    return Mode(mode)


def _check_words(queue: ReviewQueue) -> None:
    if not 1 <= len(queue.name) <= 100:
        raise InvalidInput("a queue's name has 1 to 100 characters", field="name")
    if len(queue.guideline) > MAX_TEXT:
        raise InvalidInput(f"a guideline may have {MAX_TEXT} characters", field="guideline")
    for name in ("name", "guideline"):
        if not is_storable(getattr(queue, name)):
            raise InvalidInput(NUL_OR_HALF, field=name)


def _check_numbers(queue: ReviewQueue) -> None:
    for name, (low, high) in _LIMITS.items():
        if not low <= getattr(queue, name) <= high:
            raise InvalidInput(f"{name} lies from {low} to {high}", field=name)
    if not 0 < queue.sample_rate <= 1:
        raise InvalidInput("a sample rate is a share: above 0, at most 1", field="sample_rate")


def _check_fields(queue: ReviewQueue, names: Sequence[str]) -> list[str]:
    schema = find_schema(queue.project_id).fields
    wanted = list(dict.fromkeys(names))
    if not 1 <= len(wanted) <= MAX_FIELDS:
        raise InvalidInput(f"a queue asks for 1 to {MAX_FIELDS} fields", field="field_names")
    specs = [schema.find_field(name) for name in wanted]
    if ranking := next((spec for spec in specs if spec.kind == FieldKind.RANKING), None):
        raise InvalidInput(f"{ranking.name} is a ranking: use the mode pairs", field="field_names")
    return wanted


def _find_reviewers(queue: ReviewQueue, emails: Sequence[str]) -> list[User]:
    found = []
    for email in dict.fromkeys(emails):
        user = User.objects.filter(email__iexact=email.strip()).first() if is_storable(email) else None
        role = user.role_in(queue.project) if user else None
        if user is None or role is None or not role.includes(Role.REVIEWER):
            raise InvalidInput(f"{email[:80]!r} is no reviewer of this team", field="reviewers")
        found.append(user)
    return found
