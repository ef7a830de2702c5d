"""Datasets (what people gathered) and snapshots (what it was at one moment). Knows nothing of how they change."""

from django.db import models
from django.utils import timezone

from apps.core.ids import ID_MAX_LENGTH, new_id

ACTOR_LENGTH = 254


def new_dataset_id() -> str:
    return new_id("dset")


def new_snapshot_id() -> str:
    return new_id("snap")


class Dataset(models.Model):
    """Trajectories of a project that belong together."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_dataset_id, editable=False)
    project = models.ForeignKey("accounts.Project", on_delete=models.PROTECT, related_name="datasets")
    name = models.CharField(max_length=100)
    description = models.TextField(blank=True)
    created_by = models.CharField(max_length=ACTOR_LENGTH)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    n_trajectories = models.PositiveIntegerField(default=0)  # a trigger keeps it

    class Meta:
        indexes = [models.Index(fields=["project", "-id"], name="dataset_by_project")]
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name_is_unique_in_project")]

    def __str__(self) -> str:
        return self.name


class AddedBy(models.TextChoices):
    """How a trajectory came into a dataset."""

    HAND = "hand"
    SEARCH = "search"
    BULK = "bulk"
    IMPORT = "import"


class DatasetMember(models.Model):
    """One trajectory in one dataset."""

    dataset = models.ForeignKey(Dataset, on_delete=models.CASCADE, related_name="members")
    trajectory = models.ForeignKey("trajectories.Trajectory", on_delete=models.CASCADE, related_name="memberships")
    added_how = models.CharField(max_length=10, choices=AddedBy.choices)
    query = models.TextField(blank=True)  # the search that found it
    added_by = models.CharField(max_length=ACTOR_LENGTH)
    added_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dataset", "trajectory"], name="dataset_has_a_trajectory_once")]

    def __str__(self) -> str:
        return f"{self.trajectory_id} in {self.dataset_id}"


class Snapshot(models.Model):
    """What a dataset held at one moment. From the moment that its checksum is set, the database lets nothing change."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_snapshot_id, editable=False)
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, related_name="snapshots")
    number = models.PositiveIntegerField()  # from 1, in the dataset
    note = models.CharField(max_length=200, blank=True)
    queries = models.JSONField(default=list)  # the searches that the trajectories came from
    created_by = models.CharField(max_length=ACTOR_LENGTH)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    n_trajectories = models.PositiveIntegerField(default=0)
    n_rewarded = models.PositiveIntegerField(default=0)
    n_steps = models.PositiveBigIntegerField(default=0)
    n_prompt_tokens = models.PositiveBigIntegerField(default=0)
    n_completion_tokens = models.PositiveBigIntegerField(default=0)
    mean_reward = models.FloatField(null=True)
    checksum = models.CharField(max_length=64, blank=True)  # SHA-256 over `SnapshotEntry.line`s; "": being taken

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dataset", "number"], name="snapshot_number_is_unique")]

    def __str__(self) -> str:
        return f"{self.dataset.name} #{self.number}"


class SnapshotEntry(models.Model):
    """One trajectory of a snapshot, as it was. It outlives the trajectory, so that is named and not referred to."""

    snapshot = models.ForeignKey(Snapshot, on_delete=models.PROTECT, related_name="entries")
    trajectory_id = models.CharField(max_length=ID_MAX_LENGTH)
    reward = models.FloatField(null=True)
    step_rewards = models.JSONField(default=dict)  # {index of the step: reward}
    n_steps = models.PositiveIntegerField()
    end_index = models.PositiveIntegerField()  # steps from this index on came later
    n_prompt_tokens = models.PositiveBigIntegerField()
    n_completion_tokens = models.PositiveBigIntegerField()
    content = models.CharField(max_length=64)  # SHA-256 over the steps' ids: a step's tokens and words never change
    judged = models.JSONField(null=True)  # what stood of it (rows.Pinned); None: frozen before that was kept

    class Meta:
        verbose_name_plural = "snapshot entries"
        constraints = [
            models.UniqueConstraint(fields=["snapshot", "trajectory_id"], name="snapshot_has_a_trajectory_once")
        ]

    def __str__(self) -> str:
        return f"{self.trajectory_id} in {self.snapshot_id}"


def new_export_id() -> str:
    return new_id("expt")


class Shape(models.TextChoices):
    """What one row of a file says."""

    MESSAGES = "messages", "a conversation"  # chat messages and tools
    TOKENS = "tokens", "a step in tokens"  # prompt ids, completion ids, mask, log-probs, version, reward
    PREFERENCE = "preference", "a preference: prompt, chosen, rejected"
    SFT = "sft", "a correction: prompt, completion (SFT)"
    HINTS = "hints", "a hint: prompt, completion, hint"


class FileFormat(models.TextChoices):
    JSONL = "jsonl"
    PARQUET = "parquet"


class JobState(models.TextChoices):
    """Where an export or import stands."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"  # an export whose file is gone


class Job(models.Model):
    """Work in the background that a killed worker leaves behind: the next one goes on where its rows say.

    `claim` names the worker that has it; every write of the worker asks for it, so of two only one goes on.
    """

    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.QUEUED)
    error = models.TextField(blank=True)
    created_by = models.CharField(max_length=ACTOR_LENGTH)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    sent_at = models.DateTimeField(default=timezone.now)  # to the queue
    claim = models.CharField(max_length=32, blank=True)
    beat_at = models.DateTimeField(null=True)  # the worker's last sign of life
    n_tries = models.PositiveSmallIntegerField(default=0, db_default=0)  # claims since it last got on
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        abstract = True

    @property
    def is_final(self) -> bool:
        return self.state not in {JobState.QUEUED, JobState.RUNNING}


class Export(Job):
    """A snapshot, dataset or search as a file. Exactly one of the three is its source."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_export_id, editable=False)
    project = models.ForeignKey("accounts.Project", on_delete=models.PROTECT, related_name="exports")
    snapshot = models.ForeignKey(Snapshot, on_delete=models.PROTECT, null=True, related_name="exports")
    dataset = models.ForeignKey(Dataset, on_delete=models.PROTECT, null=True, related_name="exports")
    query = models.TextField(blank=True)
    last_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # later trajectories are not in it
    shape = models.CharField(max_length=10, choices=Shape.choices)
    file_format = models.CharField(max_length=10, choices=FileFormat.choices)
    n_total = models.PositiveIntegerField()  # trajectories
    n_done = models.PositiveIntegerField(default=0)
    n_gone = models.PositiveIntegerField(default=0)  # trajectories that were deleted, or are found no more
    n_hidden = models.PositiveIntegerField(default=0, db_default=0)  # left out, since the author reviews them blind
    author = models.ForeignKey("accounts.User", on_delete=models.SET_NULL, null=True, related_name="+")  # None: a key
    n_rows = models.PositiveBigIntegerField(default=0)
    n_left_out = models.PositiveBigIntegerField(default=0)  # steps or judgements that have nothing of this shape
    n_bytes = models.PositiveBigIntegerField(default=0)
    n_parts = models.PositiveIntegerField(default=0)  # files that stand
    cursor = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # the last trajectory that is in them
    expires_at = models.DateTimeField(null=True)  # when the file is removed

    class Meta:
        indexes = [
            models.Index(fields=["project", "-id"], name="export_by_project"),
            models.Index(fields=["state"], condition=~models.Q(state="expired"), name="export_to_tend"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(snapshot=None) | models.Q(dataset=None, query=""), name="export_has_one_source"
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def file_name(self) -> str:
        return f"{self.id}-{self.shape}.{self.file_format}"


def new_import_id() -> str:
    return new_id("impt")


class RowFormat(models.TextChoices):
    """How the rows of an imported file are to be read."""

    AUTO = "auto"  # by what stands in each row
    CLAW = "claw"  # as exported
    OPENAI = "openai"  # chat messages
    SHAREGPT = "sharegpt"
    CLAW_R1 = "claw_r1"  # steps in tokens


class Import(Job):
    """A file that becomes trajectories of an agent."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_import_id, editable=False)
    project = models.ForeignKey("accounts.Project", on_delete=models.PROTECT, related_name="imports")
    agent = models.ForeignKey("accounts.Agent", on_delete=models.PROTECT, related_name="imports")
    dataset = models.ForeignKey(Dataset, on_delete=models.SET_NULL, null=True, related_name="imports")
    row_format = models.CharField(max_length=10, choices=RowFormat.choices, default=RowFormat.AUTO)
    channel = models.CharField(max_length=10, blank=True)  # "": as the file says, else train
    is_all_or_none = models.BooleanField(default=False)  # one bad line: nothing is imported
    is_again = models.BooleanField(default=False)  # also what the project has already
    file_name = models.CharField(max_length=200)
    n_bytes = models.PositiveBigIntegerField()
    n_total = models.PositiveIntegerField(default=0)  # trajectories in the file, as far as it can be read
    n_lines = models.PositiveIntegerField(default=0)
    n_imported = models.PositiveIntegerField(default=0)  # trajectories
    n_known = models.PositiveIntegerField(default=0)  # trajectories that the project has already
    n_refused = models.PositiveIntegerField(default=0)  # problems
    cursor = models.PositiveIntegerField(null=True)  # trajectories of the file that are dealt with; None: not looked at
    is_checked = models.BooleanField(default=False)  # nothing in it is bad

    class Meta:
        indexes = [models.Index(fields=["project", "-id"], name="import_by_project")]

    def __str__(self) -> str:
        return self.id

    @property
    def n_done(self) -> int:
        return self.n_imported + self.n_known


class ImportProblem(models.Model):
    """Why a line was not imported. `line` counts from 1; in Parquet it is the row."""

    source = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="problems")
    line = models.PositiveIntegerField()
    reason = models.TextField()

    class Meta:
        indexes = [models.Index(fields=["source", "line"], name="problem_by_line")]

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class ImportedTrajectory(models.Model):
    """Which content became which trajectory, so that the same content is not taken in twice unless asked."""

    source = models.ForeignKey(Import, on_delete=models.CASCADE, related_name="trajectories")
    project = models.ForeignKey("accounts.Project", on_delete=models.CASCADE, related_name="+")
    digest = models.CharField(max_length=64)
    trajectory = models.ForeignKey("trajectories.Trajectory", on_delete=models.CASCADE, related_name="+")

    class Meta:
        verbose_name_plural = "imported trajectories"
        indexes = [models.Index(fields=["project", "digest"], name="imported_by_digest")]
        constraints = [models.UniqueConstraint(fields=["source", "digest"], name="content_is_imported_once")]

    def __str__(self) -> str:
        return f"{self.trajectory_id} by {self.source_id}"
