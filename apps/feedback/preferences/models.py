"""Pairs: one answer, or one trajectory, is better than another. Facts, like labels: superseded, never changed."""

from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.feedback.models import Source
from apps.registry.models import Version
from apps.trajectories.blindness import Hidden
from apps.trajectories.models import Step, Trajectory


def new_preference_id() -> str:
    return new_id("pref")


class PreferenceKind(models.TextChoices):
    CORRECTION = "correction"  # somebody wrote what the step should have said
    COMPARISON = "comparison"  # two were shown, or a step was played again
    RANKING = "ranking"  # several were put in order; `ranking` names those that were said at once


class PreferenceQuerySet(models.QuerySet["Preference"]):
    def of_project(self, project: Project) -> "PreferenceQuerySet":
        """The project's, without those of deleted trajectories."""
        return self.filter(project=project).undeleted()

    def undeleted(self) -> "PreferenceQuerySet":
        """Those of which neither side's trajectory is deleted."""
        return self.filter(
            trajectory__deleted_at=None,
            rejected_trajectory__deleted_at=None,
            rejected_step__trajectory__deleted_at=None,
        )

    def seen_by(self, caller: Caller, *, hidden: Hidden) -> "PreferenceQuerySet":
        """Those that the caller may see; of trajectories that are `hidden` from them only their own."""
        return self.filter(~_is_of(hidden) | Q(author=caller.user)) if hidden else self

    def outside(self, hidden: Hidden) -> "PreferenceQuerySet":
        """Those of which neither side is `hidden`."""
        return self.filter(~_is_of(hidden)) if hidden else self

    def touching(self, hidden: Hidden) -> "PreferenceQuerySet":
        """Those of which a side is `hidden`."""
        return self.filter(_is_of(hidden)) if hidden else self.none()

    def standing(self) -> "PreferenceQuerySet":
        """Neither superseded nor taken back."""
        return self.filter(superseded_by=None, is_undo=False)

    def corrections(self) -> "PreferenceQuerySet":
        """Standing corrections: `chosen_message` is the answer to imitate after `step`'s prompt (SFT)."""
        return self.standing().filter(kind=PreferenceKind.CORRECTION)

    def decided(self) -> "PreferenceQuerySet":
        """Standing ones that are no ties: answers to one prompt, and whole trajectories."""
        return self.standing().filter(is_tie=False)

    def pairs(self) -> "PreferenceQuerySet":
        """Standing pairs of answers to one prompt, `step`'s (DPO). No ties, and no pairs of whole trajectories."""
        return self.decided().filter(step__isnull=False)


def _is_of(hidden: Hidden) -> Q:
    return (
        Q(trajectory__in=hidden)
        | Q(rejected_trajectory__isnull=False, rejected_trajectory__in=hidden)
        | Q(rejected_step__isnull=False, rejected_step__trajectory__in=hidden)
    )


class Preference(models.Model):
    """`chosen` is better than `rejected`, or as good (`is_tie`).

    With a `step`, both sides answer its prompt: each is a step's own answer, or a message that nobody sampled in the
    pool (a correction, a playground's). Without one, both sides are whole trajectories, and `trajectory` is the chosen.
    """

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_preference_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+")
    kind = models.CharField(max_length=10, choices=PreferenceKind.choices)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="preferences")
    # Keys to steps have two columns in Postgres (`trajectories.models.Step`); the rejected one's has none.
    step = models.ForeignKey(
        Step, on_delete=models.CASCADE, null=True, blank=True, related_name="preferences", db_constraint=False
    )
    chosen_step = models.ForeignKey(
        Step, on_delete=models.CASCADE, null=True, blank=True, related_name="+", db_constraint=False
    )
    chosen_message = models.JSONField(null=True)  # an assistant message, chat shape
    chosen_version = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    rejected_trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, null=True, related_name="+")
    rejected_step = models.ForeignKey(
        Step, on_delete=models.CASCADE, null=True, blank=True, related_name="+", db_constraint=False
    )
    rejected_message = models.JSONField(null=True)
    rejected_version = models.ForeignKey(Version, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    is_tie = models.BooleanField(default=False)
    pair = models.CharField(max_length=64)  # hash of the two sides in either order: a change of mind has the same
    field = models.CharField(max_length=60, blank=True)  # of the score schema; "": simply better
    ranking = models.CharField(max_length=ID_MAX_LENGTH, blank=True)
    text = models.TextField(blank=True)  # why
    is_undo = models.BooleanField(default=False)
    source = models.CharField(max_length=12, choices=Source.choices)
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    superseded_by = models.OneToOneField(
        "self", on_delete=models.DO_NOTHING, null=True, blank=True, related_name="supersedes"
    )
    idempotency_key = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = PreferenceQuerySet.as_manager()

    class Meta:
        app_label = "feedback"
        indexes = [
            models.Index(
                fields=["project", "-id"], condition=Q(superseded_by=None, is_undo=False), name="preference_standing"
            ),
            models.Index(fields=["trajectory", "id"], name="preference_by_trajectory"),
            models.Index(fields=["pair"], name="preference_by_pair"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(step=None, chosen_step=None, rejected_step=None, rejected_trajectory__isnull=False)
                & Q(chosen_message__isnull=True, rejected_message__isnull=True)
                | Q(step__isnull=False)
                & (Q(chosen_step=None) ^ Q(chosen_message__isnull=True))
                & (Q(rejected_step=None) ^ Q(rejected_message__isnull=True)),
                name="preference_has_two_sides_of_one_sort",
            ),
            models.CheckConstraint(
                condition=~Q(kind="correction") | Q(chosen_message__isnull=False, rejected_step=models.F("step")),
                name="correction_rewrites_its_step",
            ),
            models.CheckConstraint(condition=Q(kind__in=PreferenceKind.values), name="preference_kind_is_known"),
            models.CheckConstraint(condition=Q(source__in=Source.values), name="preference_source_is_known"),
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="preference_idempotency_key_is_unique",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"
