"""Graders, their versions, and the work they have: what is to be graded, back-fills and dry runs."""

from django.db import models
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.trajectories.models import Trajectory

MAX_NAME = 60
TAKEN_BACK = "what it said was taken back"  # the error of a grading that is skipped for that


def new_grader_id() -> str:
    return new_id("grdr")


def new_version_id() -> str:
    return new_id("gver")


def new_backfill_id() -> str:
    return new_id("bkfl")


def new_dry_run_id() -> str:
    return new_id("dryr")


class Grader(models.Model):
    """Something that judges by itself. What it does is its versions'; `live` is the one that is switched on."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_grader_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="graders")
    name = models.SlugField(max_length=MAX_NAME)
    kind = models.CharField(max_length=20)  # kinds.KINDS
    live = models.ForeignKey(
        "feedback.GraderVersion", on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    switched_on_at = models.DateTimeField(null=True, blank=True)
    seen_until = models.DateTimeField(null=True, blank=True)  # of trajectories' ends: what came before was looked at
    sealed_secret = models.TextField(blank=True, editable=False)  # by which a webhook's calls are signed
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True)  # its labels stay; it does nothing more

    class Meta:
        app_label = "feedback"
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="grader_name_is_unique_in_project"),
            models.CheckConstraint(
                condition=models.Q(archived_at=None) | models.Q(live=None), name="archived_grader_is_off"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class GraderVersion(models.Model):
    """What a grader does, and to which trajectories. Never changed: another setting is another version."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_version_id, editable=False)
    grader = models.ForeignKey(Grader, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    settings = models.JSONField()
    field = models.CharField(max_length=60)  # of the score schema: what its labels answer
    query = models.CharField(max_length=1000, blank=True)  # in the search language; "": all of the project's
    sample = models.FloatField(default=1.0)  # the part of them that is graded, 0 to 1
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        app_label = "feedback"
        constraints = [
            models.UniqueConstraint(fields=["grader", "number"], name="grader_version_number_is_unique"),
            models.CheckConstraint(condition=models.Q(sample__gt=0, sample__lte=1), name="grader_grades_some"),
        ]

    def __str__(self) -> str:
        return f"{self.grader.name}@v{self.number}"


class DailyCalls(models.Model):
    """How many calls to models and webhooks a grader has made, or is about to make, on a UTC day."""

    grader = models.ForeignKey(Grader, on_delete=models.CASCADE, related_name="daily_calls", db_index=False)
    day = models.DateField()
    n_calls = models.PositiveIntegerField(default=0)

    class Meta:
        app_label = "feedback"
        constraints = [models.UniqueConstraint(fields=["grader", "day"], name="grader_counts_a_day_once")]

    def __str__(self) -> str:
        return f"{self.n_calls} on {self.day}"


class WorkState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


UNDER_WAY = (WorkState.QUEUED, WorkState.RUNNING)


class Backfill(models.Model):
    """A wish to have a version grade what is in the pool already: all that `query` finds up to `upto`."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_backfill_id, editable=False)
    version = models.ForeignKey(GraderVersion, on_delete=models.CASCADE, related_name="backfills")
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    query = models.CharField(max_length=1000, blank=True)
    upto = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # what came later is not meant
    asked_at = models.DateTimeField(default=timezone.now)  # ages in the query count back from here
    state = models.CharField(max_length=10, choices=WorkState.choices, default=WorkState.QUEUED)
    cursor = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # the last trajectory that was lined up
    n_total = models.PositiveIntegerField(default=0)  # lined up so far
    is_lined_up = models.BooleanField(default=False)  # all of them
    touched_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "feedback"
        indexes = [
            models.Index(
                fields=["touched_at"],
                condition=models.Q(state__in=["queued", "running"]),
                name="backfill_under_way",
            )
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def is_under_way(self) -> bool:
        return self.state in UNDER_WAY


class GradingState(models.TextChoices):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"  # nothing to grade; `error` says why
    FAILED = "failed"  # `error` says why


class Grading(models.Model):
    """That a version grades a trajectory, once."""

    version = models.ForeignKey(GraderVersion, on_delete=models.CASCADE, related_name="gradings", db_index=False)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="gradings")
    backfill = models.ForeignKey(Backfill, on_delete=models.SET_NULL, null=True, blank=True, related_name="gradings")
    state = models.CharField(max_length=10, choices=GradingState.choices, default=GradingState.WAITING)
    n_tries = models.PositiveSmallIntegerField(default=0)
    n_calls = models.PositiveIntegerField(default=0)  # to models and webhooks
    due_at = models.DateTimeField(default=timezone.now)
    claimed_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    # Of what its back-fill took up again: the state, error and back-fill that it had, for where that one is stopped.
    before = models.JSONField(null=True, blank=True)

    class Meta:
        app_label = "feedback"
        indexes = [
            models.Index(fields=["version", "due_at"], condition=models.Q(state="waiting"), name="grading_waiting"),
            models.Index(fields=["claimed_at"], condition=models.Q(state="running"), name="grading_running"),
            models.Index(fields=["version", "-ended_at"], name="grading_by_end"),
        ]
        constraints = [models.UniqueConstraint(fields=["version", "trajectory"], name="version_grades_once")]

    def __str__(self) -> str:
        return f"{self.state} {self.pk}"


class DryRun(models.Model):
    """A version tried on a sample, without labels: what it would have said, beside what people said."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_dry_run_id, editable=False)
    version = models.ForeignKey(GraderVersion, on_delete=models.CASCADE, related_name="dry_runs")
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    n_wanted = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=10, choices=WorkState.choices, default=WorkState.QUEUED)
    results = models.JSONField(default=list)  # running.DryResult
    agreement = models.JSONField(default=dict)  # agreement.Agreement, {} without people
    error = models.TextField(blank=True)
    touched_at = models.DateTimeField(default=timezone.now)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        app_label = "feedback"
        indexes = [models.Index(fields=["version", "-id"], name="dry_run_by_version")]

    def __str__(self) -> str:
        return self.id
