"""Runs, their attempts, the batches they lease from the pool, and their metrics."""

from django.db import models
from django.utils import timezone

from apps.accounts.models import Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.registry.models import Policy, Version
from apps.trajectories.models import Trajectory


def new_run_id() -> str:
    return new_id("run")


class RunState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE_STATES = (RunState.QUEUED, RunState.RUNNING, RunState.CANCELLING)
FINAL_STATES = (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class Run(models.Model):
    """One training run: a recipe over a selection of the pool."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_run_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="runs")
    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="runs")
    start_version = models.ForeignKey(Version, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=100, blank=True)
    recipe = models.JSONField()  # recipes.RecipeConfig
    selection = models.JSONField(default=dict)  # selection.Selection
    baseline = models.JSONField(default=dict)  # estimators.BaselineState after the last acknowledged batch
    state = models.CharField(max_length=12, choices=RunState.choices, default=RunState.QUEUED)
    status_line = models.CharField(max_length=300, blank=True)  # what it does or waits for now
    error = models.TextField(blank=True)
    steps_done = models.PositiveIntegerField(default=0)
    n_steps = models.PositiveIntegerField()
    launched_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    idempotency_key = models.CharField(max_length=100, blank=True)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    sent_at = models.DateTimeField(default=timezone.now)  # when its message last went to the queue
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [models.Index(fields=["project", "-id"], name="run_by_project")]
        constraints = [
            models.CheckConstraint(condition=models.Q(state__in=RunState.values), name="run_state_is_known"),
            models.UniqueConstraint(
                fields=["project", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="run_idempotency_key_is_unique",
            ),
            models.UniqueConstraint(
                fields=["project"],
                condition=models.Q(state__in=ACTIVE_STATES),
                name="one_active_run_a_project",
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.id

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    def describe_now(self) -> str:
        """Return what the run does or waits for, in words. A queued one says its place: the GPU takes one at a time."""
        if self.state != RunState.QUEUED:
            return self.status_line
        n_before = Run.objects.filter(state__in=ACTIVE_STATES, id__lt=self.id).count()
        return f"{self.status_line}; runs before it: {n_before}" if n_before else self.status_line


class AttemptState(models.TextChoices):
    RUNNING = "running"
    ENDED = "ended"
    CRASHED = "crashed"  # its trainer was killed or hung, and the run goes on
    LOST = "lost"  # its worker stopped reporting


class Attempt(models.Model):
    """One process life of a run. At most one attempt of a run is running."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=AttemptState.choices, default=AttemptState.RUNNING)
    host = models.CharField(max_length=200)
    process_group = models.PositiveIntegerField(null=True)  # of the trainer
    heartbeat_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number_is_unique"),
            models.UniqueConstraint(
                fields=["run"], condition=models.Q(state="running"), name="one_running_attempt_a_run"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} attempt {self.number}"


class BatchState(models.TextChoices):
    LEASED = "leased"
    TRAINED = "trained"  # acknowledged: its trajectories are used up for this policy
    RELEASED = "released"  # given back untrained
    SKIPPED = "skipped"  # every advantage was zero: nothing to learn, used up all the same


class Batch(models.Model):
    """Trajectories leased to one step of a run, acknowledged when that step is safe in a checkpoint."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="batches")
    step = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=BatchState.choices, default=BatchState.LEASED)
    baseline_after = models.JSONField(default=dict)
    reward_mean = models.FloatField(null=True)  # None: nothing in it has a reward, only corrections
    staleness_mean = models.FloatField(default=0)  # versions between the one that spoke and the one in training
    n_samples = models.PositiveIntegerField()
    discards = models.JSONField(default=dict)  # reason → number of trajectories or steps left out
    leased_at = models.DateTimeField(default=timezone.now)
    trained_at = models.DateTimeField(null=True, blank=True)
    version = models.OneToOneField(Version, on_delete=models.SET_NULL, null=True, blank=True, related_name="batch")

    class Meta:
        verbose_name_plural = "batches"
        constraints = [
            models.UniqueConstraint(
                fields=["run", "step"],
                condition=models.Q(state__in=["leased", "trained"]),
                name="one_batch_a_step",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} batch {self.step}"


class BatchTrajectory(models.Model):
    """The consumption ledger: which trajectory went into which batch with which reward and advantage-free facts."""

    batch = models.ForeignKey(Batch, on_delete=models.CASCADE, related_name="entries")
    policy = models.ForeignKey(Policy, on_delete=models.CASCADE, related_name="+")
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="batch_entries")
    reward = models.FloatField(null=True)  # None: it was lent for a correction
    facts = models.JSONField(default=dict)  # collecting.Facts: what else was known of it when it was lent
    use = models.CharField(max_length=80, blank=True)  # "": from its reward; from labels "<run>/<uses in it before>"
    is_active = models.BooleanField(default=True)  # False once the batch was released

    class Meta:
        verbose_name_plural = "batch trajectories"
        constraints = [
            models.UniqueConstraint(
                fields=["policy", "trajectory", "use"],
                condition=models.Q(is_active=True),
                name="trajectory_is_trained_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.trajectory_id} in {self.batch_id}"


class Metric(models.Model):
    """One point of every curve: what a step of a run measured. Points of lost attempts are kept."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="metrics")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="metrics")
    step = models.PositiveIntegerField()
    values = models.JSONField()  # name → number
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "step"], name="one_point_a_step")]

    def __str__(self) -> str:
        return f"{self.run_id} step {self.step}"


class RunEvent(models.Model):
    """A line of the run's history, in words."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=40)
    message = models.TextField()
    at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class TrainHost(models.Model):
    """What the host of a train worker last said it has; by it a run is judged before it is launched."""

    name = models.CharField(primary_key=True, max_length=200)
    device = models.CharField(max_length=10)  # "cpu" or "cuda"
    device_memory = models.BigIntegerField(null=True)  # bytes of the smallest GPU
    memory = models.BigIntegerField()  # bytes of the host
    reported_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
