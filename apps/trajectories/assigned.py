"""Calls that people have put into a trajectory, each with what it takes to put it back into the inbox.

Written and read by `inbox.py` and `taking_out.py`.
"""

from django.db import models
from django.utils import timezone

from apps.core.ids import ID_MAX_LENGTH
from apps.trajectories.models import Trajectory


class AssignedCall(models.Model):
    """A call that was moved into a trajectory by hand: by whom, and how both were before."""

    exchange_id = models.CharField(primary_key=True, max_length=ID_MAX_LENGTH)
    project_id = models.CharField(max_length=ID_MAX_LENGTH)
    trajectory = models.ForeignKey(Trajectory, on_delete=models.CASCADE, related_name="assigned_calls")
    assigned_by = models.CharField(max_length=300)
    assigned_at = models.DateTimeField(default=timezone.now)
    named_trajectory_id = models.CharField(max_length=ID_MAX_LENGTH, blank=True)  # by its client
    was_unassigned = models.BooleanField()
    fold_error = models.TextField(blank=True)
    title = models.CharField(max_length=200, blank=True)  # of the trajectory, as the next two
    has_error = models.BooleanField()
    last_step_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["project_id", "-exchange_id"], name="assigned_by_project")]

    def __str__(self) -> str:
        return self.exchange_id
