"""Side tables of search: what was said, which versions spoke, the names that people give to searches, and how a person
likes to see what one finds."""

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVectorField
from django.db import models
from django.utils import timezone

from apps.accounts.models import Project, User
from apps.core.ids import ID_MAX_LENGTH, new_id
from apps.trajectories.search.language import MAX_LENGTH


def new_view_id() -> str:
    return new_id("view")


class TrajectoryText(models.Model):
    """Words of some neighbouring steps of a trajectory, where Postgres finds them.

    Rows are only added: a long trajectory has many, and none grows.
    """

    trajectory = models.ForeignKey("trajectories.Trajectory", on_delete=models.CASCADE, related_name="texts")
    words = SearchVectorField()

    class Meta:
        indexes = [GinIndex(fields=["words"], name="trajectory_by_words")]

    def __str__(self) -> str:
        return f"words of {self.trajectory_id}"


class TrajectoryVersion(models.Model):
    """A version that spoke in a trajectory."""

    trajectory = models.ForeignKey(
        "trajectories.Trajectory", on_delete=models.CASCADE, related_name="spoken_by", db_index=False
    )
    version = models.ForeignKey("registry.Version", on_delete=models.CASCADE, related_name="+", db_index=False)

    class Meta:
        indexes = [models.Index(fields=["version", "-trajectory"], name="trajectory_by_version")]
        constraints = [
            models.UniqueConstraint(fields=["trajectory", "version"], name="version_is_noted_once"),
        ]

    def __str__(self) -> str:
        return f"{self.version_id} in {self.trajectory_id}"


class SavedView(models.Model):
    """A name for an address of the list: its search. Taken back ones stay until they are cleared away."""

    id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH, default=new_view_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="saved_views")
    owner = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    name = models.CharField(max_length=60)
    query = models.CharField(max_length=MAX_LENGTH, blank=True)  # in the search language
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    deleted_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"], condition=models.Q(deleted_at=None), name="view_name_is_used_once"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class ListLook(models.Model):
    """How a person likes the list of trajectories. Which columns and densities there are is the console's business."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, primary_key=True, related_name="list_look")
    columns = ArrayField(models.CharField(max_length=20))
    density = models.CharField(max_length=10, blank=True)
    widths = models.JSONField(default=dict)  # column → pixels, of those whose width was changed

    def __str__(self) -> str:
        return f"look of {self.user_id}"
