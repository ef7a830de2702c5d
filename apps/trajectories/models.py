"""The pool: exchanges as they happened (ledger), and the trajectories and steps folded out of them."""

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import Value
from django.db.models.functions import MD5
from django.utils import timezone

from apps.accounts.models import Agent, ApiKey, Project
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.registry.models import Version
from apps.trajectories.packing import PackedField
from apps.trajectories.querysets import ExchangeQuerySet, StepQuerySet, TrajectoryQuerySet
from apps.trajectories.stems import SharedField


def new_exchange_id() -> str:
    return new_id("exch")


def new_trajectory_id() -> str:
    return new_id("traj")


def new_step_id() -> str:
    return new_id("step")


class AllDifferent(models.Func):
    """Whether no value of a smallint array stands there twice (a function of the migrations)."""

    function = "trajectories_all_different"
    output_field = models.BooleanField()


class Stem(models.Model):
    """What calls of one conversation begin and end with, kept once (`stems.py`). Cut into months like the calls."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, editable=False)
    request = PackedField()
    chat_request = PackedField(null=True)
    prompt_token_ids = PackedField(null=True)
    response = PackedField(null=True)

    def __str__(self) -> str:
        return self.id


class ExchangeStatus(models.TextChoices):
    COMPLETE = "complete"
    ABORTED = "aborted"  # the client went away; what had come is kept
    ERROR = "error"  # no usable answer


class Exchange(models.Model):
    """One captured call, raw. Written by the gateway with plain SQL (`exchange_log.py`); only what the recorder notes
    changes. The table is cut into months by id (`months.py`).

    Columns that carry what a client or an engine said are bytes: nothing a client sends can make the insert fail.
    The ids are not foreign keys for the same reason.
    """

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_exchange_id, editable=False)
    project_id = models.CharField(max_length=ID_MAX_LENGTH)
    agent_id = models.CharField(max_length=ID_MAX_LENGTH)
    key_id = models.CharField(max_length=ID_MAX_LENGTH)
    version_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # the weights that spoke
    engine_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)
    trajectory_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # named by the client, checked
    session_key = models.CharField(max_length=400, blank=True)  # named by the client, free text
    dialect = models.CharField(max_length=20)  # of the client's request: "chat", "messages", …
    response_id = models.CharField(max_length=80, blank=True)  # chatcmpl-…, as the agent was told
    request = SharedField()  # the body as received
    headers = models.BinaryField()  # JSON object of the headers kept for session finding
    response = SharedField(null=True)  # the whole answer as one JSON object in the dialect's non-streamed shape
    prompt_token_ids = SharedField(null=True)  # int32 little-endian, (P,)
    completion_token_ids = ArrayField(models.BinaryField(), default=list)  # one int32 array a choice, (T,)
    completion_logprobs = ArrayField(models.BinaryField(), default=list)  # one float32 array a choice, (T,), nats
    sampling = models.BinaryField()  # JSON: the sampling parameters as sent to the engine
    status = models.CharField(max_length=10, choices=ExchangeStatus.choices)
    error = models.TextField(blank=True)
    is_streamed = models.BooleanField()
    is_exact = models.BooleanField()  # ids and log-probs are the engine's own and of equal length
    started_at = models.DateTimeField()
    first_token_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    # The defaults are the database's too: a gateway of the release before goes on writing during an upgrade.
    chat_request = SharedField(null=True)  # JSON: `messages` and `tools` as sent; None: the dialect is chat
    chat_response = PackedField(null=True)  # the answer as a chat completion; None: the dialect is chat
    is_training_allowed = models.BooleanField(default=True, db_default=True)  # False: the caller opted out
    token_check = models.TextField(blank=True, default="", db_default="")  # why ids are doubted
    stem = models.ForeignKey(  # what its texts are cut by; no constraint: the gateway writes it before the call
        Stem, on_delete=models.DO_NOTHING, null=True, db_constraint=False, db_index=False, related_name="calls"
    )
    folded_at = models.DateTimeField(null=True)
    # The choices of its answer that are steps. The database refuses to note one twice: so none is folded twice.
    folded_choices = ArrayField(models.SmallIntegerField(), default=list, db_default=Value("{}"))
    fold_error = models.TextField(blank=True)  # why the recorder set it aside

    objects = ExchangeQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["id"], condition=models.Q(folded_at=None), name="exchange_unfolded"),
            models.Index(fields=["response_id"], condition=~models.Q(response_id=""), name="exchange_by_response"),
            models.Index(fields=["project_id", "-id"], condition=~models.Q(fold_error=""), name="exchange_set_aside"),
            models.Index(
                MD5("prompt_token_ids", output_field=models.CharField()),
                condition=models.Q(dialect="generate"),
                name="generation_by_prompt",
            ),
            models.Index(fields=["stem"], condition=~models.Q(stem=None), name="exchange_by_stem"),
        ]
        constraints = [
            models.CheckConstraint(condition=AllDifferent("folded_choices"), name="exchange_is_folded_once"),
        ]

    def __str__(self) -> str:
        return self.id


class TrajectoryState(models.TextChoices):
    OPEN = "open"
    COMPLETE = "complete"


class Channel(models.TextChoices):
    TRAIN = "train"
    VAL = "val"


class Trajectory(models.Model):
    """One session or episode: a tree of steps."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_trajectory_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="trajectories")
    agent = models.ForeignKey(Agent, on_delete=models.PROTECT, related_name="trajectories")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, related_name="+")
    session_key = models.CharField(max_length=400, blank=True)
    parent = models.ForeignKey(  # the session that started this one: it is a sub-agent's, or some background work
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="children"
    )
    channel = models.CharField(max_length=10, choices=Channel.choices, default=Channel.TRAIN)
    group = models.CharField(max_length=100, blank=True)  # tries at one prompt share it
    metadata = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=TrajectoryState.choices, default=TrajectoryState.OPEN)
    title = models.CharField(max_length=200, blank=True)  # what the user asked first, cut
    reward = models.FloatField(null=True)  # what the labels add up to; kept by services.set_rewards
    is_excluded = models.BooleanField(default=False)  # a person keeps it out of training
    n_steps = models.PositiveIntegerField(default=0)
    n_prompt_tokens = models.PositiveBigIntegerField(default=0)
    n_completion_tokens = models.PositiveBigIntegerField(default=0)
    has_error = models.BooleanField(default=False)
    started_at = models.DateTimeField(default=timezone.now)
    last_step_at = models.DateTimeField(default=timezone.now)
    completed_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)  # gone for everybody; cleared away when nobody can undo it

    objects = TrajectoryQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "trajectories"
        indexes = [
            models.Index(fields=["project", "-id"], name="trajectory_by_project"),
            models.Index(fields=["project", "channel", "state", "id"], name="trajectory_for_training"),
            models.Index(fields=["agent", "-id"], name="trajectory_by_agent"),
            models.Index(fields=["agent", "-last_step_at"], name="trajectory_by_last_step"),
            models.Index(fields=["project", "channel", "-id"], name="trajectory_by_channel"),
            models.Index(fields=["project", "-started_at"], name="trajectory_by_start"),
            models.Index(fields=["project", "reward"], name="trajectory_by_reward"),
            models.Index(fields=["project", "n_steps"], name="trajectory_by_steps"),
            models.Index(fields=["project", "group", "-id"], condition=~models.Q(group=""), name="trajectory_by_group"),
            models.Index(
                fields=["project", "session_key", "-id"],
                condition=~models.Q(session_key=""),
                name="trajectory_by_session",
            ),
            models.Index(fields=["project", "-id"], condition=models.Q(has_error=True), name="trajectory_with_error"),
            models.Index(fields=["project", "-id"], condition=models.Q(is_excluded=True), name="trajectory_excluded"),
            models.Index(fields=["deleted_at"], condition=~models.Q(deleted_at=None), name="trajectory_deleted"),
            models.Index(
                fields=["project", "completed_at"],
                condition=~models.Q(completed_at=None),
                name="trajectory_by_completion",
            ),
            models.Index(
                fields=["last_step_at"], condition=models.Q(state="open"), name="trajectory_open_by_last_step"
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["agent", "key", "session_key"],
                condition=models.Q(state="open") & ~models.Q(session_key=""),
                name="one_open_trajectory_a_session",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class SideCall(models.TextChoices):
    """Calls beside the main chain of a session. Kept, labelled, left out of training."""

    NONE = ""
    TITLE = "title"
    FLUSH = "flush"  # of memories, before a compaction
    COMPACTION = "compaction"
    EXTRACTION = "extraction"  # of memories, from what was said
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"
    ANNOUNCE = "announce"  # a sub-agent's result comes back to its parent
    OTHER = "other"


class PrefixBreak(models.TextChoices):
    """Why a prompt does not go on where its parent ended (`prefix_breaks.py`)."""

    NONE = ""
    TRANSIENT = "transient"  # the client took words out again that were meant for one call
    TEMPLATE = "template"  # the same messages, rendered in another way
    RETOKENISED = "retokenised"  # the same answer, in other tokens than were sampled
    EDIT = "edit"  # the client changed what was said, or the tools
    COMPACTION = "compaction"


class Opening(models.Model):
    """What many conversations of a project begin with, stored once by content hash: system messages, and the tokens
    that they and the tools became. A root step shares it as others share their parent.

    `token_ids` is what the first two prompts have in common: nothing before there are two, and never changed after.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64)
    messages = models.BinaryField()  # JSON list, chat shape
    token_ids = models.BinaryField(default=bytes)  # int32 little-endian
    example_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # the step that the next prompt is compared to

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "digest"], name="opening_is_stored_once")]

    def __str__(self) -> str:
        return self.digest


class Step(models.Model):
    """One model call in a trajectory: state = prompt ids, action = completion ids.

    The prompt is a node of the trajectory's token trie: it shares its first `shared_tokens` tokens with
    `parent`'s prompt + completion; `tail_token_ids` holds what follows. Messages are stored the same way. A root
    shares with its `opening`, if it has one.

    The table is cut into months by `trajectory` (`months.py`): a trajectory's steps lie together, and its keys hold
    there. Postgres' primary key is (id, trajectory), so a foreign key to a step names both: here it has no constraint,
    and a migration adds the one of both columns.
    """

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_step_id, editable=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="steps", db_index=False)
    exchange_id = models.CharField(max_length=ID_MAX_LENGTH)  # "subm_…": submitted, with no call of ours behind it
    choice = models.PositiveSmallIntegerField(default=0)
    index = models.PositiveIntegerField()  # order in the trajectory, from 0
    parent = models.ForeignKey(
        "self", on_delete=models.CASCADE, null=True, blank=True, related_name="children", db_constraint=False
    )
    opening = models.ForeignKey(Opening, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    chain = models.CharField(max_length=64, blank=True)  # hash of system text and tools
    epoch = models.PositiveIntegerField(null=True, blank=True)  # compactions before it, if the client counts them
    side_call = models.CharField(max_length=12, choices=SideCall.choices, default=SideCall.NONE, blank=True)
    prefix_break = models.CharField(
        max_length=12, choices=PrefixBreak.choices, default=PrefixBreak.NONE, db_default="", blank=True
    )
    version = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, related_name="steps")
    response_id = models.CharField(max_length=80, blank=True)
    shared_tokens = models.PositiveIntegerField(default=0)
    tail_token_ids = models.BinaryField()  # int32 little-endian
    completion_token_ids = models.BinaryField()  # int32 little-endian, (T,)
    logprobs = models.BinaryField()  # float32 little-endian, (T,), nats, at the sampling temperature
    shared_messages = models.PositiveIntegerField(default=0)
    tail_messages = models.BinaryField()  # JSON list, chat shape
    answer = models.BinaryField()  # JSON assistant message, chat shape
    answer_digests = ArrayField(models.CharField(max_length=64), default=list)  # sessions.step_digests
    tools_digest = models.CharField(max_length=64, blank=True)
    n_prompt_tokens = models.PositiveIntegerField(default=0)
    n_completion_tokens = models.PositiveIntegerField(default=0)
    finish_reason = models.CharField(max_length=30, blank=True)
    status = models.CharField(max_length=10, choices=ExchangeStatus.choices)
    is_exact = models.BooleanField()
    token_check = models.TextField(blank=True)  # why the gateway doubts the token ids
    constraints = models.CharField(  # parameters that bent the sampling (`constraints`), so that log-probs mislead
        max_length=200, blank=True, default="", db_default=""
    )
    is_excluded = models.BooleanField(default=False)
    temperature = models.FloatField(default=1.0)
    top_p = models.FloatField(default=1.0)
    top_k = models.IntegerField(default=-1)
    reward = models.FloatField(null=True)
    client_step_id = models.CharField(max_length=100, blank=True)  # how its maker names a submitted step
    metadata = models.JSONField(default=dict)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    objects = StepQuerySet.as_manager()

    class Meta:
        ordering = ["trajectory", "index"]
        indexes = [
            models.Index(fields=["exchange_id"], name="step_by_exchange"),
            models.Index(fields=["response_id"], condition=~models.Q(response_id=""), name="step_by_response"),
            # No list of new entries beside it: each look-up would read that list from end to end.
            GinIndex(fields=["answer_digests"], name="step_by_digest", fastupdate=False),
            models.Index(fields=["-id"], condition=~models.Q(side_call=""), name="step_side_call"),
            models.Index(
                fields=["prefix_break", "trajectory"], condition=~models.Q(prefix_break=""), name="step_by_break"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["trajectory", "index"], name="step_index_is_unique"),
            models.UniqueConstraint(
                fields=["trajectory", "client_step_id"],
                condition=~models.Q(client_step_id=""),
                name="step_is_submitted_once",
            ),
        ]

    def __str__(self) -> str:
        return self.id


class Tools(models.Model):
    """A list of tool definitions, stored once by content hash."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64)
    body = models.BinaryField()  # JSON list

    class Meta:
        verbose_name_plural = "tools"
        constraints = [models.UniqueConstraint(fields=["project", "digest"], name="tools_are_stored_once")]

    def __str__(self) -> str:
        return self.digest


from apps.trajectories import assigned as _assigned  # noqa: E402, F401 (Django looks for tables here)
from apps.trajectories import unassigned as _unassigned  # noqa: E402, F401 (Django looks for tables here)
from apps.trajectories.bulk import models as _bulk  # noqa: E402, F401
from apps.trajectories.datasets import models as _datasets  # noqa: E402, F401 (Django looks for tables here)
from apps.trajectories.search import models as _search  # noqa: E402, F401
