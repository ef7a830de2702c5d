"""Labels: what a person, end user, rule, judge or environment said about a trajectory or a step."""

from django.db import models
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.trajectories.models import Step, Trajectory


def new_label_id() -> str:
    return new_id("labl")


class Source(models.TextChoices):
    HUMAN = "human"
    END_USER = "end_user"
    ENVIRONMENT = "environment"
    RULE = "rule"
    JUDGE = "judge"


class LabelQuerySet(models.QuerySet["Label"]):
    def current(self) -> "LabelQuerySet":
        """Labels that no later one has superseded. An undo is current too, and has no value."""
        return self.filter(superseded_by=None)


class Label(models.Model):
    """One judgement. Append-only: a change is a new label that supersedes this one, an undo one without a value."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_label_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="labels")
    step = models.ForeignKey(Step, on_delete=models.CASCADE, null=True, blank=True, related_name="labels")
    field = models.CharField(max_length=60, default="reward")
    value = models.FloatField(null=True)  # -1 to 1; None takes the earlier label back
    text = models.TextField(blank=True)
    source = models.CharField(max_length=12, choices=Source.choices)
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    superseded_by = models.OneToOneField(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="supersedes"
    )
    idempotency_key = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = LabelQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["trajectory", "id"], name="label_by_trajectory")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(value=None) | models.Q(value__gte=-1, value__lte=1), name="label_value_in_range"
            ),
            models.CheckConstraint(condition=models.Q(source__in=Source.values), name="label_source_is_known"),
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="label_idempotency_key_is_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.field}={self.value}"
