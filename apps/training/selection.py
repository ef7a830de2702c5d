"""What part of a project's pool a run may train on. Says nothing of freshness: that is the recipe's staleness cap."""

from datetime import UTC, datetime
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from apps.core.errors import InvalidInput, first_of
from apps.core.ids import ID_MAX_LENGTH, is_id
from apps.core.texts import NUL_OR_HALF, is_storable
from apps.trajectories.datasets.models import SnapshotEntry
from apps.trajectories.models import Channel, Trajectory


class Selection(BaseModel):
    """Filters that a trajectory must all pass; None or "" means any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: Channel = Channel.TRAIN
    agent: str = Field(default="", max_length=60, description="slug of an agent of the project")
    group_prefix: str = Field(default="", max_length=100)
    since: datetime | None = None
    until: datetime | None = None
    min_reward: float | None = Field(default=None, ge=-1, le=1)
    max_reward: float | None = Field(default=None, ge=-1, le=1)
    snapshot: str = Field(
        default="", max_length=ID_MAX_LENGTH, description="only what this snapshot of a dataset holds"
    )

    @field_validator("agent", "group_prefix")
    @classmethod
    def check_text(cls, value: str) -> str:
        """Refuse what Postgres would not even look for."""
        if not is_storable(value):
            raise ValueError(NUL_OR_HALF)
        return value

    @field_validator("snapshot")
    @classmethod
    def check_snapshot(cls, value: str) -> str:
        """Refuse what cannot be a snapshot's id."""
        if value and not is_id(value, "snap"):
            raise ValueError("this is no snapshot: its id begins with snap_")
        return value

    @field_validator("since", "until")
    @classmethod
    def check_moment(cls, value: datetime | None) -> datetime | None:
        """Refuse times without a zone, and those that lie outside the calendar in the database's zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("times need a zone, as in 2026-01-31T12:00:00Z")
        try:
            return value.astimezone(UTC)
        except OverflowError as error:
            raise ValueError("this time lies outside the calendar") from error

    @model_validator(mode="after")
    def check_ranges(self) -> "Selection":
        """Refuse ranges in which nothing can lie."""
        if self.since and self.until and self.since >= self.until:
            raise ValueError("since must lie before until")
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise ValueError("min_reward must not be above max_reward")
        return self

    def narrow(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        """Return the rows that pass; `rows` are one project's."""
        return self.narrow_channels(rows).filter(channel=self.channel)

    def narrow_channels(self, rows: QuerySet[Trajectory]) -> QuerySet[Trajectory]:
        """Return the rows that pass in either channel."""
        conditions = {
            "agent__slug": self.agent,
            "group__startswith": self.group_prefix,
            "started_at__gte": self.since,
            "started_at__lt": self.until,
            "reward__gte": self.min_reward,
            "reward__lte": self.max_reward,
        }
        if self.snapshot:
            rows = rows.filter(
                Exists(SnapshotEntry.objects.filter(snapshot=self.snapshot, trajectory_id=OuterRef("pk")))
            )
        return rows.filter(**{name: value for name, value in conditions.items() if value not in (None, "")})


def read_selection(data: dict[str, Any]) -> Selection:
    """Return the checked selection. Raises InvalidInput that names what is wrong."""
    try:
        return Selection.model_validate(data)
    except ValidationError as error:
        places = [(".".join(["selection", *map(str, one["loc"])]), one["msg"]) for one in error.errors()]
        raise first_of([InvalidInput(f"{at}: {said}", field=at) for at, said in places]) from error
