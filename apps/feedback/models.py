"""Labels: what a person, end user, rule, judge or environment said about a trajectory, a step or a span of its words;
and the versions of a project's score schema.

Rows are facts: the database refuses to change them (`feedback_keep_facts` in the migrations). What may happen to one
later is that something supersedes it, and that its author is forgotten.
"""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.feedback.score_schema import Schema
from apps.trajectories.blindness import Hidden
from apps.trajectories.models import Step, Trajectory


def new_label_id() -> str:
    return new_id("labl")


def new_schema_id() -> str:
    return new_id("schm")


class Source(models.TextChoices):
    HUMAN = "human"
    END_USER = "end_user"
    ENVIRONMENT = "environment"
    RULE = "rule"
    JUDGE = "judge"
    NEXT_STATE = "next_state"  # what the user said next, or what the tool answered


class ScoreSchema(models.Model):
    """One version of what may be said in a project and what it is worth. The highest number is in force; a project
    without any has `score_schema.DEFAULT`."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_schema_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="score_schemas")
    number = models.PositiveIntegerField()
    definition = models.JSONField()  # score_schema.Schema
    note = models.CharField(max_length=400, blank=True)  # why it was changed
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "number"], name="score_schema_number_is_unique")]

    def __str__(self) -> str:
        return f"{self.project_id} v{self.number}"

    @property
    def schema(self) -> Schema:
        return Schema.model_validate(self.definition)


class LabelQuerySet(models.QuerySet["Label"]):
    def current(self) -> "LabelQuerySet":
        """Labels that no later one has superseded. An undo is current too, and says nothing."""
        return self.filter(superseded_by=None)

    def standing(self) -> "LabelQuerySet":
        """Labels that are neither superseded nor taken back."""
        return self.current().filter(is_undo=False)

    def seen_by(self, caller: Caller, *, hidden: Hidden) -> "LabelQuerySet":
        """Those that the caller may see; of trajectories that are `hidden` from them (`blindness`) only their own."""
        return self.filter(~Q(trajectory__in=hidden) | Q(author=caller.user)) if hidden else self

    def hints(self) -> "LabelQuerySet":
        """Standing words to the model: what it should have known at a step. For distillation."""
        return self.standing().filter(field="hint", step__isnull=False).exclude(text="")


class Label(models.Model):
    """One judgement. Append-only: a change is a new label that supersedes this one, and so is an undo.

    `said` is the answer on its field's own scale; None: `value` is the answer. `value` is what it was worth when it was
    said, -1 to 1; scoring asks the schema in force. A span counts characters of the step's words
    (`trajectories.messages.spoken_text`), from the first to before the last.
    """

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_label_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="labels")
    step = models.ForeignKey(
        Step, on_delete=models.CASCADE, null=True, blank=True, related_name="labels", db_constraint=False
    )
    span_start = models.PositiveIntegerField(null=True, blank=True)
    span_end = models.PositiveIntegerField(null=True, blank=True)
    field = models.CharField(max_length=60, default="reward")
    schema = models.ForeignKey(ScoreSchema, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    said = models.JSONField(null=True)
    value = models.FloatField(null=True)  # -1 to 1; None: words, an answer that counts for nothing, or an undo
    text = models.TextField(blank=True)
    is_undo = models.BooleanField(default=False, db_default=False)  # takes what it supersedes back
    source = models.CharField(max_length=12, choices=Source.choices)
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    grader = models.ForeignKey(
        "feedback.GraderVersion", on_delete=models.PROTECT, null=True, blank=True, related_name="labels"
    )
    token = models.ForeignKey("feedback.ThumbToken", on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    end_user = models.CharField(max_length=100, blank=True, default="", db_default="")  # as the app names them
    # Nothing is done when the successor goes, since both go at once, with their trajectory.
    superseded_by = models.OneToOneField(
        "self", on_delete=models.DO_NOTHING, null=True, blank=True, related_name="supersedes"
    )
    idempotency_key = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = LabelQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["trajectory", "id"], name="label_by_trajectory"),
            models.Index(
                fields=["project", "-id"], condition=models.Q(field="hint", superseded_by=None), name="label_hint"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(value=None) | models.Q(value__gte=-1, value__lte=1), name="label_value_in_range"
            ),
            models.CheckConstraint(condition=models.Q(source__in=Source.values), name="label_source_is_known"),
            models.CheckConstraint(
                condition=models.Q(is_undo=True, value=None, said__isnull=True, text="")
                | models.Q(is_undo=False)
                & (models.Q(value__isnull=False) | models.Q(said__isnull=False) | ~models.Q(text="")),
                name="label_says_something_or_is_an_undo",
            ),
            models.CheckConstraint(
                condition=models.Q(span_start=None, span_end=None)
                | models.Q(span_end__gt=models.F("span_start"), step__isnull=False),
                name="label_span_lies_in_a_step",
            ),
            models.UniqueConstraint(
                fields=["grader", "trajectory", "step", "field"],
                condition=models.Q(superseded_by=None, is_undo=False, grader__isnull=False),
                nulls_distinct=False,
                name="grader_labels_a_target_once",
            ),
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="label_idempotency_key_is_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.field}={self.value}"

    @property
    def span(self) -> tuple[int, int] | None:
        if self.span_start is None or self.span_end is None:
            return None
        return self.span_start, self.span_end


from apps.feedback.graders import models as _graders  # noqa: E402, F401 (Django looks for tables here)
from apps.feedback.preferences import models as _preferences  # noqa: E402, F401
from apps.feedback.queues import models as _queues  # noqa: E402, F401
from apps.feedback.thumbs import models as _thumbs  # noqa: E402, F401
