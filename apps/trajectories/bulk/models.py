"""Jobs over many trajectories, what each of them changed, and tags."""

from django.db import models
from django.utils import timezone

from apps.accounts.models import ApiKey, Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.trajectories.search.language import MAX_LENGTH, Filter, Query


def new_job_id() -> str:
    return new_id("job")


class TrajectoryTag(models.Model):
    """A word that people put on a trajectory."""

    trajectory = models.ForeignKey(
        "trajectories.Trajectory", on_delete=models.CASCADE, related_name="tags", db_index=False
    )
    name = models.CharField(max_length=40)

    class Meta:
        indexes = [models.Index(fields=["name", "-trajectory"], name="trajectory_by_tag")]
        constraints = [models.UniqueConstraint(fields=["trajectory", "name"], name="tag_is_put_once")]

    def __str__(self) -> str:
        return self.name

    @property
    def search(self) -> str:
        """The search that finds all that have it."""
        return str(Query(terms=(Filter(field="tag", operator=":", values=(self.name,)),)))


class JobState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    UNDOING = "undoing"
    UNDONE = "undone"


class BulkJob(models.Model):
    """One change to many trajectories: to those in `ids`, or those that `query` finds up to `upto`, newest first."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_job_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="bulk_jobs")
    author = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    key = models.ForeignKey(ApiKey, on_delete=models.SET_NULL, null=True, related_name="+")
    action = models.CharField(max_length=20)
    settings = models.JSONField(default=dict)  # what the action is told: a value, a tag, a channel
    ids = models.JSONField(default=list)
    query = models.CharField(max_length=MAX_LENGTH, blank=True)  # in the search language; only where there are no ids
    upto = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # what came later is not meant
    asked_at = models.DateTimeField(default=timezone.now)  # ages in the query count back from here
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    cursor = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # the last trajectory that was looked at
    n_total = models.PositiveIntegerField(null=True)  # None: not counted yet
    n_done = models.PositiveIntegerField(default=0)
    n_changed = models.PositiveIntegerField(null=True)  # of those done: the others were so already; None: not counted
    n_failed = models.PositiveIntegerField(default=0)
    n_undone = models.PositiveIntegerField(default=0)
    touched_at = models.DateTimeField(default=timezone.now)  # a worker was at it
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            models.Index(fields=["project", "-id"], name="job_by_project"),
            models.Index(
                fields=["touched_at"],
                condition=models.Q(state__in=["queued", "running", "undoing"]),
                name="job_under_way",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.id}"

    @property
    def is_under_way(self) -> bool:
        return self.state in {JobState.QUEUED, JobState.RUNNING, JobState.UNDOING}

    @property
    def n_looked_at(self) -> int:
        return self.n_done + self.n_failed

    @property
    def n_as_before(self) -> int:
        """Those that were as the job wants them already."""
        return 0 if self.n_changed is None else self.n_done - self.n_changed


class BulkChange(models.Model):
    """What a job did to one trajectory: how it was before, or why nothing could be done."""

    job = models.ForeignKey(BulkJob, on_delete=models.CASCADE, related_name="changes", db_index=False)
    trajectory_id = models.CharField(max_length=ID_MAX_LENGTH)  # no foreign key: what is deleted stays accounted for
    before = models.JSONField(null=True)  # None: there is nothing to take back
    error = models.TextField(blank=True)
    is_undone = models.BooleanField(default=False)

    class Meta:
        indexes = [
            models.Index(fields=["job", "id"], condition=~models.Q(error=""), name="failed_bulk_change"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "trajectory_id"], name="job_changes_a_trajectory_once"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.trajectory_id}"
